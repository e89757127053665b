"""Choice of the kernels of a problem, and of the order of problems, for the next measurements."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewise.checks import is_whole, require
from tilewise.errors import ConfigError
from tilewise.features import log_sizes, nearest_shape_distances, shape_distances
from tilewise.metrics import Floats, Ints, place_within

Bools = npt.NDArray[np.bool_]

FAR = 1.0  # log2 shape distance from which a problem counts as entirely new
MIN_REGRET = 0.005  # of the logarithm: a committee's smaller expectations are not trusted


@dataclass(frozen=True)
class KernelChoice:
    """Rules for choosing the kernels of a problem.

    Attributes:
        share: share of a problem's supported kernels to measure.
        top: share of those that are the best ranked. The others are drawn, because a model that never saw a bad kernel
            overestimates it.
        temperature: temperature of the draw: a kernel predicted this much slower (a logarithm) is drawn e times less
            often.
        least: minimum number of kernels per problem; a single one would rank nothing.

    Raises:
        ConfigError: a value is out of its range.
    """

    share: float = 0.2
    top: float = 0.5
    temperature: float = 0.2
    least: int = 2

    def __post_init__(self) -> None:
        if not (0 < self.share <= 1 and 0 <= self.top <= 1 and self.temperature > 0):
            raise ConfigError(
                "`0 < plan.share <= 1`, `0 <= plan.top <= 1` and `0 < plan.temperature` must hold, got "
                f"{self.share}, {self.top} and {self.temperature}"
            )
        require("plan.least must be a whole number of at least 2", is_whole(self.least) and self.least >= 2, self.least)


def choose_kernels(problem: Ints, score: Floats, choice: KernelChoice, rng: np.random.Generator) -> Bools:
    """Return which rows to measure, of shape (rows,): each problem's share, at least ``choice.least`` if it has them.

    Args:
        problem: number of each row's problem, ascending, from 0 without gaps, of shape (rows,).
        score: predicted log(TFLOPS), of shape (rows,).
        choice: the rules.
        rng: generator of the draw.
    """
    count = np.bincount(problem)
    wanted = np.minimum(np.maximum(np.round(choice.share * count), choice.least), count)[problem]
    sure = np.ceil(choice.top * wanted)
    first = place_within(problem, score) < sure
    # Adding Gumbel noise and taking the first draws without replacement, in proportion to exp(score / temperature).
    drawn = np.where(first, np.inf, score / choice.temperature + rng.gumbel(size=len(score)))
    measured: Bools = place_within(problem, drawn) < wanted
    return measured


def order_problems(keys: Ints, known: Ints, regret: Floats, seconds: Floats) -> list[int]:
    """Return problem indices by expected benefit per second of measuring, largest first.

    The benefit of a problem is its expected regret, reduced if it lies near (see :data:`FAR`) a problem that was
    measured or comes earlier in this order: that measurement also helps here.

    Args:
        keys: group keys, of shape (problems, dimensions).
        known: group keys of measured problems, of shape (others, dimensions); may be empty.
        regret: expected regret, of shape (problems,), see :func:`tilewise.campaigns.plan.disagreement`.
        seconds: measuring time, of shape (problems,).
    """
    points = log_sizes(keys)
    nearest = nearest_shape_distances(keys, known) if len(known) else np.full(len(points), np.inf)
    worth = np.maximum(regret, MIN_REGRET) / seconds
    left = np.ones(len(points), dtype=bool)
    order = []
    for _ in range(len(points)):
        promise = np.where(left, worth * np.minimum(nearest / FAR, 1.0), -1.0)
        best = int(promise.argmax())
        order.append(best)
        left[best] = False
        nearest = np.minimum(nearest, shape_distances(points[best], points))
    return order


def within_budget(order: list[int], seconds: Callable[[int], float], budget_s: float) -> list[int]:
    """Return the longest prefix of `order` that fits into the budget, but at least the first problem."""
    spent = 0.0
    chosen: list[int] = []
    for index in order:
        spent += seconds(index)
        if chosen and spent > budget_s:
            break
        chosen.append(index)
    return chosen

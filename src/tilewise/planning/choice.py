"""Which kernels of a problem are worth measuring, and which problems are worth it first."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tilewise.checks import is_whole, require
from tilewise.errors import ConfigError
from tilewise.features.octaves import distances, log_sizes, nearest_octaves
from tilewise.metrics import Floats, Ints, place_within

Bools = npt.NDArray[np.bool_]

FAR = 1.0  # octaves beyond which a problem is new whatever the distance
LEAST_REGRET = 0.005  # of the logarithm: what no committee knows to be less


@dataclass(frozen=True)
class KernelChoice:
    """How the kernels of a problem are chosen.

    Attributes:
        share: of a problem's supported kernels.
        top: of those, the best ranked. The others are drawn, for a model that never saw a bad kernel believes in it.
        temperature: of the draw: a kernel predicted this much slower (a logarithm) is drawn e times less often.
        least: kernels of a problem, whatever the share is of those it has; one alone would rank nothing.

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
    """Which rows to measure: bool, (rows,); of each problem its share, at least ``choice.least`` if it has them.

    Args:
        problem: (rows,) problem of each row, ascending, numbered from 0 without gaps.
        score: (rows,) predicted log(TFLOPS).
        choice: how.
        rng: of the draw.
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
    """Problems by what a second spent on them promises, the best first.

    A problem promises its expected regret, less where it lies near to one that was measured or comes before it in
    this order (see :data:`FAR`): what is learnt there serves here.

    Args:
        keys: (problems, dimensions) group keys.
        known: (others, dimensions) those that were measured; may be empty.
        regret: (problems,) expected, see :func:`tilewise.planning.committee.disagreement`.
        seconds: (problems,) what measuring takes.
    """
    points = log_sizes(keys)
    nearest = nearest_octaves(keys, known) if len(known) else np.full(len(points), np.inf)
    worth = np.maximum(regret, LEAST_REGRET) / seconds
    left = np.ones(len(points), dtype=bool)
    order = []
    for _ in range(len(points)):
        promise = np.where(left, worth * np.minimum(nearest / FAR, 1.0), -1.0)
        best = int(promise.argmax())
        order.append(best)
        left[best] = False
        nearest = np.minimum(nearest, distances(points[best], points))
    return order


def within_budget(order: list[int], seconds: Callable[[int], float], budget_s: float) -> list[int]:
    """The first of `order` that fit into the budget together; the first one in any case."""
    spent = 0.0
    chosen: list[int] = []
    for index in order:
        spent += seconds(index)
        if chosen and spent > budget_s:
            break
        chosen.append(index)
    return chosen

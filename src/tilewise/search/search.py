"""One search, from a model and a problem to the best configurations found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewise.checks import is_whole, require
from tilewise.errors import KernelError
from tilewise.model.trained import TrainedModel
from tilewise.ops import Problem
from tilewise.search.methods import METHODS
from tilewise.search.space import LegalSpace, ListedSpace, Space
from tilewise.search.surrogate import CAUTION, Alike, BudgetSpent, Surrogate


@dataclass(frozen=True)
class SearchSettings:
    """How to search.

    Attributes:
        method: of :data:`~tilewise.search.methods.METHODS`.
        n_evaluations: kernels that the model may be asked about.
        seed: of everything drawn.
        start: the pool's best by the model, from which the search begins; they count as evaluations.
        caution: what a step away from the pool costs, of the logarithm; see :mod:`tilewise.search.surrogate`.

    Raises:
        ConfigError: a value is out of its range.
    """

    method: str = "evolution"
    n_evaluations: int = 500
    seed: int = 0
    start: int = 10
    caution: float = CAUTION

    def __post_init__(self) -> None:
        require(f"search.method must be one of {', '.join(METHODS)}", self.method in METHODS, self.method)
        for name, least in (("n_evaluations", 1), ("seed", 0), ("start", 0)):
            value = getattr(self, name)
            ok = is_whole(value) and value >= least
            require(f"search.{name} must be a whole number of at least {least}", ok, value)
        require("search.caution must not be negative", self.caution >= 0, self.caution)


@dataclass(frozen=True)
class Found:
    """A configuration that a search found, and how far it is from the pool (0: `in_pool`, it was measured)."""

    kernel: Any
    predicted_tflops: float  # without caution
    steps: float
    in_pool: bool


@dataclass(frozen=True)
class SearchResult:
    """The best configurations, best first, and how many the model was asked about."""

    found: tuple[Found, ...]
    evaluations: int


def search(
    model: TrainedModel,
    problem: Problem,
    settings: SearchSettings,
    count: int = 3,
    only: Sequence[Any] | None = None,
    alike: Alike | None = None,
) -> SearchResult:
    """Find a problem's best configurations by the model's scores; the same for equal arguments.

    Args:
        model: scores them.
        problem: the shape.
        settings: how.
        count: of configurations to hand back.
        alike: of the model's pool, where many problems are searched.
        only: search among these kernels, which must support the problem, instead of all that is legal.

    Raises:
        KernelError: nothing legal supports the problem, or there are no rules to search by.
    """
    space: Space = LegalSpace(model.target, model.arch, problem) if only is None else ListedSpace(only)
    surrogate = Surrogate(model, problem, settings.n_evaluations, alike=alike, caution=settings.caution)
    try:
        begin = _start(model, problem, settings, only, surrogate)
        METHODS[settings.method](space, surrogate, begin, settings.seed)
    except BudgetSpent:
        pass
    best = surrogate.best(count)
    if not best:
        raise KernelError(f"no configuration of {model.target.name} supports {problem}")
    steps = [surrogate.steps[k] for k, _ in best]
    scores = np.array([score for _, score in best]) + settings.caution * np.array(steps)
    tflops = model.tflops_of_scores(problem, scores)
    pool = set(model.pool.kernels)
    found = tuple(Found(k, float(t), s, k in pool) for (k, _), t, s in zip(best, tflops, steps, strict=True))
    return SearchResult(found, len(surrogate.scores))


def _start(
    model: TrainedModel, problem: Problem, settings: SearchSettings, only: Sequence[Any] | None, surrogate: Surrogate
) -> list[Any]:
    """The pool's favourites; a search among some kernels begins with nothing, for their scores would be for free."""
    if only is not None or not settings.start:
        return []
    favourites = [model.pool.kernels[i] for i in model.rank(problem, settings.start)]
    surrogate(favourites)
    return favourites

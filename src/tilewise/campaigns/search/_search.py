"""A search, from a model and a problem to the best configurations found."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from tilewise.campaigns.search._methods import METHODS
from tilewise.campaigns.search._space import ListedSpace, legal_space
from tilewise.campaigns.search._surrogate import CAUTION, BudgetSpent, PoolDistances, Surrogate
from tilewise.checks import is_whole, require
from tilewise.errors import KernelError
from tilewise.kernels import KernelBase
from tilewise.model import TrainedModel
from tilewise.ops import Problem


@dataclass(frozen=True)
class SearchSettings:
    """Settings of a search. Defaults are those of conf/search.

    Attributes:
        method: one of :data:`~tilewise.campaigns.search._methods.METHODS`.
        n_evaluations: number of kernels that the model may score.
        seed: seed of all draws.
        start: number of the pool's best kernels by the model from which the search starts; they count as evaluations.
        caution: cost of a step away from the pool, of the logarithm, see
            :mod:`tilewise.campaigns.search._surrogate`.

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
    """A configuration that a search found, and its steps away from the pool (0 for `in_pool`)."""

    kernel: KernelBase
    predicted_tflops: float  # without caution
    steps: float
    in_pool: bool


@dataclass(frozen=True)
class SearchResult:
    """The best configurations, best first, and the number of kernels that the model scored."""

    found: tuple[Found, ...]
    evaluations: int


def search(
    model: TrainedModel,
    problem: Problem,
    settings: SearchSettings,
    count: int = 3,
    only: Sequence[KernelBase] | None = None,
    distances: PoolDistances | None = None,
) -> SearchResult:
    """Return a problem's best configurations by the model's scores; deterministic for equal arguments.

    Args:
        model: the model whose scores are searched.
        problem: the shape.
        settings: method, budget and caution.
        count: number of configurations to return.
        only: search among these kernels, which must support the problem; None: all legal kernels.
        distances: distances to the model's pool, shared where many problems are searched; None: computed here.

    Raises:
        KernelError: no legal kernel supports the problem, or the backend has no rules to search by.
    """
    space = legal_space(model, problem) if only is None else ListedSpace(only)
    surrogate = Surrogate(model, problem, settings.n_evaluations, distances=distances, caution=settings.caution)
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
    model: TrainedModel,
    problem: Problem,
    settings: SearchSettings,
    only: Sequence[KernelBase] | None,
    surrogate: Surrogate,
) -> list[KernelBase]:
    """Return the pool's favourites; none for a search among given kernels, whose scores they would give away."""
    if only is not None or not settings.start:
        return []
    favourites = [model.pool.kernels[i] for i in model.rank(problem, settings.start)]
    surrogate(favourites)
    return favourites

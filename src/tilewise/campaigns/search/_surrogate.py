"""A model's scores in place of measurements; each kernel is scored once, and counted.

A search maximises the score, and so finds the model's overestimates, far from all kernels that it learnt from. For
kernels outside the pool the cost model knows only the compiled binary, so the model's error is nearly twice that on the
pool. Hence each step away from the pool costs `caution`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from tilewise.kernels import KernelBase, Pool
from tilewise.metrics import Floats
from tilewise.model import TrainedModel
from tilewise.ops import Problem

Columns = Mapping[str, npt.NDArray[np.generic]]
CAUTION = 0.05  # of the logarithm, per step; see docs/measuring-less.md for its effect


class BudgetSpent(Exception):
    """All evaluations are used; this ends a search and is not an error."""


class PoolDistances:
    """Distance of kernels to the most similar kernel of a pool, in steps.

    A step is a factor of two in a number (one more or less of the stages).
    """

    def __init__(self, pool: Pool) -> None:
        self._names = [n for n, kind in pool.backend.column_kinds().items() if kind == "int"]
        self._pipelines = pool.columns["pipeline"].astype(str)
        self._points = self._place(pool.columns)

    def steps(self, kernel: Columns) -> Floats:
        """Return the steps of kernels given as columns, of shape (kernels,); 0 for kernels of the pool."""
        steps = np.abs(self._place(kernel)[:, None] - self._points[None]).sum(axis=2)
        steps += _OTHER_PIPELINE * (np.asarray(kernel["pipeline"]).astype(str)[:, None] != self._pipelines[None])
        nearest: Floats = steps.min(axis=1)
        return nearest

    def _place(self, columns: Columns) -> Floats:
        values = [
            np.asarray(columns[n], dtype=np.float64) if n == "num_stages" else np.log2(np.maximum(columns[n], 0.5))
            for n in self._names
        ]
        return np.stack(values, axis=1)


_OTHER_PIPELINE = 20.0  # steps: an entirely different binary


class Surrogate:
    """Scores of one problem's kernels; higher is faster.

    Attributes:
        scores: score of each kernel with caution subtracted, in the order of asking.
        steps: steps of each kernel away from the pool.
    """

    def __init__(
        self,
        model: TrainedModel,
        problem: Problem,
        budget: int,
        *,
        distances: PoolDistances | None = None,
        caution: float = CAUTION,
    ) -> None:
        self._model, self._problem, self._budget, self._caution = model, problem, budget, caution
        self._distances = distances or PoolDistances(model.pool)
        self.scores: dict[KernelBase, float] = {}
        self.steps: dict[KernelBase, float] = {}

    @property
    def left(self) -> int:
        """Number of evaluations left."""
        return self._budget - len(self.scores)

    def __call__(self, kernels: Sequence[KernelBase]) -> Floats:
        """Return the scores of kernels, of shape (kernels,); kernels scored before cost nothing.

        Raises:
            BudgetSpent: the budget does not suffice; kernels before its end are scored.
        """
        new = list(dict.fromkeys(k for k in kernels if k not in self.scores))
        affordable = new[: self.left]
        if affordable:
            self.scores.update(zip(affordable, self._ask(affordable).tolist(), strict=True))
        if len(affordable) < len(new):
            raise BudgetSpent
        return np.array([self.scores[k] for k in kernels])

    def best(self, count: int) -> list[tuple[KernelBase, float]]:
        """Return the highest scores so far, equals in the order of asking."""
        return sorted(self.scores.items(), key=lambda pair: -pair[1])[:count]

    def _ask(self, kernels: Sequence[KernelBase]) -> Floats:
        columns = {n: np.array([getattr(k, n) for k in kernels]) for n in self._model.pool.columns}
        steps = self._distances.steps(columns)
        self.steps.update(zip(kernels, steps.tolist(), strict=True))
        scores: Floats = self._model.score_rows(self._problem.to_dict(), columns)
        return scores - self._caution * steps

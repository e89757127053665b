"""A model's scores in the place of measurements, each kernel asked about once and counted.

A search looks for the highest score, and so finds where the model errs upwards: far from every kernel that it learnt
from. The estimate knows a kernel outside the pool by its compiled program alone, so there the model errs nearly twice
as much as on the pool. Hence each step away from the pool costs `caution`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewise.kernels.pool import Pool
from tilewise.metrics import Floats
from tilewise.model.trained import TrainedModel
from tilewise.ops import Problem

CAUTION = 0.05  # of the logarithm, a step; see docs/measuring-less.md for what it is worth


class BudgetSpent(Exception):
    """Every evaluation was used: no error, but how a search ends."""


class Alike:
    """How far kernels are from the most alike kernel of a pool.

    A step is a factor of two in a number (one more or less of the stages).
    """

    def __init__(self, pool: Pool) -> None:
        self._names = [n for n, kind in pool.backend.kernel.column_kinds().items() if kind == "int"]
        self._walks = pool.columns["pipeline"].astype(str)
        self._points = self._place(pool.columns)

    def steps(self, kernel: dict[str, Any]) -> Floats:
        """(kernels,) steps of kernels given as columns; 0 for those of the pool."""
        steps = np.abs(self._place(kernel)[:, None] - self._points[None]).sum(axis=2)
        steps += _OTHER_WALK * (np.asarray(kernel["pipeline"]).astype(str)[:, None] != self._walks[None])
        nearest: Floats = steps.min(axis=1)
        return nearest

    def _place(self, columns: dict[str, Any]) -> Floats:
        values = [
            np.asarray(columns[n], dtype=np.float64) if n == "num_stages" else np.log2(np.maximum(columns[n], 0.5))
            for n in self._names
        ]
        return np.stack(values, axis=1)


_OTHER_WALK = 20.0  # steps: another program altogether


class Surrogate:
    """Scores of one problem's kernels; higher is faster.

    Attributes:
        scores: by kernel, in the order of asking, caution subtracted.
        steps: by kernel, away from the pool.
    """

    def __init__(
        self,
        model: TrainedModel,
        problem: Problem,
        budget: int,
        *,
        alike: Alike | None = None,
        caution: float = CAUTION,
    ) -> None:
        self._model, self._problem, self._budget, self._caution = model, problem, budget, caution
        self._alike = alike or Alike(model.pool)
        self.scores: dict[Any, float] = {}
        self.steps: dict[Any, float] = {}

    @property
    def left(self) -> int:
        """Evaluations left."""
        return self._budget - len(self.scores)

    def __call__(self, kernels: Sequence[Any]) -> Floats:
        """(kernels,) scores; kernels that were asked about before cost nothing.

        Raises:
            BudgetSpent: the evaluations end within these; those before the end are known.
        """
        new = list(dict.fromkeys(k for k in kernels if k not in self.scores))
        affordable = new[: self.left]
        if affordable:
            self.scores.update(zip(affordable, self._ask(affordable).tolist(), strict=True))
        if len(affordable) < len(new):
            raise BudgetSpent
        return np.array([self.scores[k] for k in kernels])

    def best(self, count: int) -> list[tuple[Any, float]]:
        """The highest scores so far, equals in the order of asking."""
        return sorted(self.scores.items(), key=lambda pair: -pair[1])[:count]

    def _ask(self, kernels: Sequence[Any]) -> Floats:
        columns = {n: np.array([getattr(k, n) for k in kernels]) for n in self._model.pool.columns}
        steps = self._alike.steps(columns)
        self.steps.update(zip(kernels, steps.tolist(), strict=True))
        scores: Floats = self._model.score_rows(self._problem.to_dict(), columns)
        return scores - self._caution * steps

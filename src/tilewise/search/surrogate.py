"""A model's scores in the place of measurements, each kernel asked about once and counted."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from tilewise.metrics import Floats
from tilewise.model.artefact import TrainedModel
from tilewise.ops import Problem


class BudgetSpent(Exception):
    """Every evaluation was used."""


class Surrogate:
    """Scores of one problem's kernels; higher is faster.

    Attributes:
        scores: by kernel, in the order of asking.
    """

    def __init__(self, model: TrainedModel, problem: Problem, budget: int) -> None:
        self._model, self._problem, self._budget = model, problem, budget
        self.scores: dict[Any, float] = {}

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
            columns = {n: np.array([getattr(k, n) for k in affordable]) for n in self._model.pool.columns}
            found = self._model.score_rows(self._problem.to_dict(), columns)
            self.scores.update(zip(affordable, found.tolist(), strict=True))
        if len(affordable) < len(new):
            raise BudgetSpent
        return np.array([self.scores[k] for k in kernels])

    def best(self, count: int) -> list[tuple[Any, float]]:
        """The highest scores so far, equals in the order of asking."""
        return sorted(self.scores.items(), key=lambda pair: -pair[1])[:count]

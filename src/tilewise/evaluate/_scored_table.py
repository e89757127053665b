"""Measured rows scored by a model: the common input of an evaluation's columns."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Self

import numpy as np

from tilewise.data import Bools, TargetTable
from tilewise.metrics import Floats, Selections, select
from tilewise.model import TrainedModel


@dataclass(frozen=True)
class ScoredTable:
    """Measured rows of whole problems, and the model's predictions and selections.

    Attributes:
        model: the model.
        table: valid labels in order; each problem has at least one candidate.
        candidate: rows whose kernels the model may select, of shape (rows,).
        predicted: predicted TFLOPS of the candidates, NaN for other rows, of shape (rows,).
        chosen: the selections.
    """

    model: TrainedModel
    table: TargetTable
    candidate: Bools
    predicted: Floats
    chosen: Selections

    @classmethod
    def of(cls, model: TrainedModel, table: TargetTable) -> Self:
        """Score the candidates of `table`, and select one per problem."""
        candidate = table.support(model.pool)[0]
        score, predicted = _predict(model, table, candidate)
        return cls(model, table, candidate, predicted, select(table.problem, table.tflops, score))

    def candidate_rows(self) -> TargetTable:
        """Return the rows of the candidates."""
        return self.table.take(self.candidate)


def judged_rows(model: TrainedModel, rows: TargetTable) -> tuple[TargetTable, int]:
    """Return the labels of the problems with a candidate, in order, and the number of problems without one."""
    labels = rows.labelled().ordered(model.pool)
    candidate, number = labels.support(model.pool)[0], labels.problem
    has_candidate = np.isin(number, number[candidate])
    return labels.take(has_candidate), len(np.unique(number[~has_candidate]))


def _predict(model: TrainedModel, table: TargetTable, candidate: Bools) -> tuple[Floats, Floats]:
    """Return score and TFLOPS of each row; other rows than candidates have minus infinity and NaN."""
    score, tflops = np.full(len(table), -np.inf), np.full(len(table), np.nan)
    chosen, problem = table.take(candidate), table.problem
    score[candidate] = model.score_candidates(
        problem[candidate], chosen.problem_columns(), chosen.kernel_columns(model.pool)
    )
    bounds = np.append(np.flatnonzero(np.diff(problem, prepend=-1)), len(problem))
    for p, (start, stop) in zip(table.problems, pairwise(bounds.tolist()), strict=True):
        of_problem = start + np.flatnonzero(candidate[start:stop])
        tflops[of_problem] = model.tflops_of_scores(p, score[of_problem])
    return score, tflops

"""Labels and weights that trees learn from, and the conversion of scores to TFLOPS."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from tilewise.metrics import select
from tilewise.train._dataset import Floats, Ints, Table
from tilewise.train._ranking import MOST_RESIDUAL, ExpectedRegret, LambdaRank, Objective, grades
from tilewise.train._settings import ModelSettings


@dataclass(frozen=True)
class Labels:
    """Labels and weights of shape (rows,); `weight` may be None: all rows weigh the same.

    Trees minimise the squared error, or `objective` where given.
    """

    values: Floats
    weight: Floats | None
    objective: Objective | None = None

    def take(self, rows: Ints) -> Labels:
        """Return the labels of some rows."""
        weight = None if self.weight is None else self.weight[rows]
        return Labels(self.values[rows], weight, self.objective and self.objective.take(rows))


def make_labels(table: Table, settings: ModelSettings, baseline: Floats) -> Labels:
    """Return the labels for `settings`; see :class:`ModelSettings` for their meaning.

    Args:
        table: the rows.
        settings: label and weights.
        baseline: scores that the trees are added to, of shape (rows,), see
            :class:`~tilewise.train.cost_model.Baselines`.
    """
    efficiency, weight = table.efficiency, _weights(table, settings, baseline)
    if settings.label == "log1p":
        return Labels(np.log1p(table.tflops) - baseline, weight)
    if settings.label == "lambdarank":
        return Labels(grades(efficiency), weight, LambdaRank(baseline, table.problem, settings.lambda_l2))
    if settings.label in ("residual", "regret"):
        log_rate = np.log(table.tflops)
        residuals = Labels(np.clip(log_rate - baseline, -MOST_RESIDUAL, MOST_RESIDUAL), weight)
        if settings.label == "residual":
            return residuals
        each = np.ones_like(baseline) if weight is None else weight
        objective = ExpectedRegret(baseline, log_rate, 1 - efficiency, each, table.problem)
        return replace(residuals, weight=None, objective=objective)
    return Labels(np.log(np.maximum(efficiency, settings.label_floor)) - baseline, weight)


def _weights(table: Table, settings: ModelSettings, baseline: Floats) -> Floats | None:
    top_weight = 0.0 if settings.label == "lambdarank" else settings.top_weight
    taught = not table.is_own.all()
    if not (top_weight or settings.noise_floor or settings.hard_weight or taught):
        return None
    weight = np.maximum(table.efficiency, settings.weight_floor) ** top_weight
    if settings.noise_floor:
        weight = weight / (1 + (table.spread / settings.noise_floor) ** 2)
    if settings.hard_weight:
        regret = 1 - select(table.problem, table.tflops, baseline).efficiency
        weight = weight * (1 + settings.hard_weight * regret[table.problem])
    if taught:
        weight = weight * table.weights(settings.teacher_weight)[table.problem]
    return weight


def to_tflops(label: str, score: Floats, log_scale: Floats) -> Floats:
    """Return the TFLOPS that scores predict.

    Args:
        label: one of :data:`tilewise.model.LABELS`.
        score: predicted labels with the baseline added, of shape (rows,).
        log_scale: what the scores of each row's problem lack to be log(TFLOPS), of shape (rows,); 0 for labels without
            a scale.
    """
    if label == "log1p":
        return np.maximum(np.expm1(score), 1e-9)
    return np.exp(score + log_scale)

"""What the trees learn: labels and weights of rows, and the way back to TFLOPS."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewise.metrics import select
from tilewise.train.dataset import Floats, Table
from tilewise.train.settings import ModelSettings

MOST_RESIDUAL = 0.7  # of the logarithm: a kernel twice as slow as estimated is no candidate, however much slower


@dataclass(frozen=True)
class Labels:
    """Labels and weights, (rows,) each; `weight` is None where all rows weigh alike."""

    values: Floats
    weight: Floats | None


def labels(table: Table, settings: ModelSettings, baseline: Floats) -> Labels:
    """The labels that `settings` ask for; see :class:`ModelSettings` for their meaning.

    Args:
        table: the rows.
        settings: label and weights.
        baseline: (rows,) see :class:`~tilewise.train.baseline.Baselines`.
    """
    efficiency, weight = table.efficiency, _weights(table, settings, baseline)
    if settings.label == "log1p":
        return Labels(np.log1p(table.tflops) - baseline, weight)
    if settings.label == "residual":
        return Labels(np.clip(np.log(table.tflops) - baseline, -MOST_RESIDUAL, MOST_RESIDUAL), weight)
    return Labels(np.log(np.maximum(efficiency, settings.label_floor)) - baseline, weight)


def _weights(table: Table, settings: ModelSettings, baseline: Floats) -> Floats | None:
    if not (settings.top_weight or settings.noise_floor or settings.hard_weight):
        return None
    weight = table.efficiency**settings.top_weight
    if settings.noise_floor:
        weight = weight / (1 + (table.spread / settings.noise_floor) ** 2)
    if settings.hard_weight:
        regret = 1 - select(table.problem, table.tflops, baseline).efficiency
        weight = weight * (1 + settings.hard_weight * regret[table.problem])
    return weight


def to_tflops(label: str, score: Floats, log_best: Floats | None) -> Floats:
    """TFLOPS that scores stand for.

    Args:
        label: of :data:`tilewise.train.settings.LABELS`.
        score: (rows,) predicted labels, the baseline added.
        log_best: (rows,) predicted log(best TFLOPS of the row's problem), for ``relative``.
    """
    if label == "log1p":
        return np.maximum(np.expm1(score), 1e-9)
    return np.exp(score if log_best is None else score + log_best)

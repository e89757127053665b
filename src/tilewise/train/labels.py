"""What the trees learn: labels and weights of rows, and the way back to TFLOPS."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewise.train.dataset import Floats, Table
from tilewise.train.settings import ModelSettings


@dataclass(frozen=True)
class Labels:
    """Labels and weights, (rows,) each; `weight` is None where all rows weigh alike."""

    values: Floats
    weight: Floats | None


def labels(table: Table, settings: ModelSettings) -> Labels:
    """The labels that `settings` ask for; see :class:`ModelSettings` for their meaning."""
    efficiency = table.tflops / table.best[table.problem]
    weight = efficiency**settings.top_weight if settings.top_weight > 0 else None
    if settings.label == "log1p":
        return Labels(np.log1p(table.tflops), weight)
    return Labels(np.log(np.maximum(efficiency, settings.label_floor)), weight)


def to_tflops(label: str, score: Floats, log_best: Floats | None) -> Floats:
    """TFLOPS that scores stand for.

    Args:
        label: ``relative`` or ``log1p``.
        score: (rows,) predicted labels.
        log_best: (rows,) predicted log(best TFLOPS of the row's problem), for ``relative``.
    """
    if log_best is None:
        return np.maximum(np.expm1(score), 1e-9)
    return np.exp(score + log_best)

"""What an evaluation hands on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pandas as pd

from tilewise.metrics import Floats
from tilewise.ops import Target


@dataclass(frozen=True)
class NoiseCeiling:
    """How well the measured best repeats itself: picked by one run, judged by the others.

    Attributes:
        n_problems: problems measured by at least two runs.
        mean_efficiency, median_efficiency, p10_efficiency: of the pick, in (0, 1].
        same_kernel_rate: share of problems where both runs have the same best kernel.
    """

    n_problems: int
    mean_efficiency: float
    median_efficiency: float
    p10_efficiency: float
    same_kernel_rate: float


@dataclass(frozen=True)
class Evaluation:
    """A model's selections on measured problems.

    Attributes:
        target: of the model.
        per_problem: a row a problem: its problem columns, `oracle`, `selected` (kernel names), `oracle_tflops`,
            `selected_tflops`, `predicted_tflops`, `efficiency` in (0, 1], `oracle_rank` (place of the oracle by score,
            0 is first), `n_kernels` (candidates measured), `origin`, the labels of :mod:`tilewise.evaluate.slices`,
            `oracle_predicted_tflops` (NaN: the oracle is no candidate), `nearest_octaves` (see
            :mod:`tilewise.features.octaves`; NaN: unknown), `repeat_noise` (see
            :func:`tilewise.evaluate.noise.repeat_noise`) and `efficiency_again` (TFLOPS of the selection / of the
            oracle by other runs, above 1 where these disagree; NaN: not repeated); with a calibrated model also those
            of :func:`tilewise.evaluate.trust.trust_columns`. Join on the problem columns.
        metrics: names as in :data:`tilewise.metrics.METRICS`, over these problems.
        pool_size: kernels that the model may choose from.
        split_rule: which problems these are, in words.
        noise_ceiling: None where nothing was measured twice.
        n_unjudged: problems left out, because no kernel of the model's pool is valid for them.
        regret: best of the top k, measured: see :func:`tilewise.metrics.regret_curve`.
        measured, predicted: (rows,) TFLOPS of the candidates, for a plot.
    """

    target: Target
    per_problem: pd.DataFrame
    metrics: Mapping[str, float]
    pool_size: int
    split_rule: str
    noise_ceiling: NoiseCeiling | None
    n_unjudged: int
    regret: Sequence[Mapping[str, Any]]
    measured: Floats = field(repr=False)
    predicted: Floats = field(repr=False)

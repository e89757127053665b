"""The result of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pandas as pd

from tilewise.metrics import Floats
from tilewise.ops import Target


@dataclass(frozen=True)
class NoiseCeiling:
    """Repeatability of the measured best: kernels picked by one run, judged by the other runs.

    Attributes:
        n_problems: problems measured by at least two runs.
        mean_efficiency, median_efficiency, p10_efficiency: efficiency of the picked kernel, in (0, 1].
        same_kernel_rate: share of problems where both runs have the same best kernel.
    """

    n_problems: int
    mean_efficiency: float
    median_efficiency: float
    p10_efficiency: float
    same_kernel_rate: float


@dataclass(frozen=True)
class WholePool:
    """Efficiency of selections from the whole pool on tables that list the fastest kernels of a problem only.

    Attributes:
        mean_efficiency, median_efficiency, p10_efficiency: in (0, 1]; an unlisted selection counts as the slowest
            listed kernel, which it may be slower than.
        listed_rate: share of problems whose selection is listed.
    """

    mean_efficiency: float
    median_efficiency: float
    p10_efficiency: float
    listed_rate: float


@dataclass(frozen=True)
class Evaluation:
    """A model's selections on measured problems.

    Attributes:
        target: target of the model.
        per_problem: one row per problem: its problem columns, `oracle`, `selected` (kernel names), `oracle_tflops`,
            `selected_tflops`, `predicted_tflops`, `efficiency` in (0, 1], `oracle_rank` (place of the oracle by score,
            0 is first), `n_kernels` (candidates measured), `origin`, the slice labels of :mod:`tilewise.evaluate`,
            `oracle_predicted_tflops` (NaN: the oracle is not a candidate), `nearest_octaves` (log2 shape distance to
            the training data; NaN: unknown), `repeat_noise` (see :func:`tilewise.evaluate._noise.repeat_noise`) and
            `efficiency_again` (TFLOPS of the selection / of the oracle by other runs, above 1 where these disagree;
            NaN: not repeated). A calibrated model adds the columns of
            :func:`tilewise.evaluate._confidence_coverage.confidence_columns`. Join on the problem columns.
        metrics: named as in :data:`tilewise.metrics.METRICS`, over these problems.
        pool_size: kernels that the model may choose from.
        split_rule: description of the evaluated problems.
        noise_ceiling: None where no problem was measured twice.
        n_unjudged: problems left out because no kernel of the model's pool is valid for them.
        whole_pool: the same selections from the whole pool, where tables list the fastest kernels of a problem only; an
            unlisted selection counts as the slowest listed kernel. None for complete tables.
        regret: efficiency of the best of the top k, see :func:`tilewise.metrics.regret_curve`.
        measured, predicted: TFLOPS of the candidates, of shape (candidates,), for a plot.
        extras: errors of the model's own latency and bandwidth, by label: see :func:`tilewise.metrics.error_figures`.
            Empty for a model without such trees.
    """

    target: Target
    per_problem: pd.DataFrame
    metrics: Mapping[str, float]
    pool_size: int
    split_rule: str
    noise_ceiling: NoiseCeiling | None
    n_unjudged: int
    whole_pool: WholePool | None
    regret: Sequence[Mapping[str, float]]
    measured: Floats = field(repr=False)
    predicted: Floats = field(repr=False)
    extras: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

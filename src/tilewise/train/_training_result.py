"""Results of a training: the parts of the model's folder, metrics, learning curves and tuning trials."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tilewise.ops import Target
from tilewise.train._settings import ModelSettings, TrainSettings

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tilewise.model import ArtefactParts

TrialState = Literal["complete", "pruned", "failed"]


@dataclass(frozen=True)
class TrialResult:
    """One tuning trial.

    Attributes:
        number: number in the study, from 0.
        params: the tuned parameters.
        value: mean of `fold_values`; NaN where a failed trial finished no fold.
        fold_values: the first objective per fold; a pruned trial has fewer.
        state: ``pruned`` trials stopped early as hopeless, ``failed`` ones were killed or interrupted.
        values: mean of each objective over the folds.
        is_initial: whether the parameters are those that tuning started from.
    """

    number: int
    params: Mapping[str, float | int]
    value: float
    fold_values: tuple[float, ...]
    state: TrialState
    values: Mapping[str, float]
    is_initial: bool


@dataclass(frozen=True)
class TuningResult:
    """The result of a parameter search.

    Attributes:
        model: settings to train with.
        trials: finished trials of the study, earlier calls included; empty where nothing was searched.
        study: name of the study.
        chosen: the trial whose parameters `model` has.
        importances: importance of each parameter, see :func:`tilewise.train.tuning._study.parameter_importances`.
    """

    model: ModelSettings
    trials: tuple[TrialResult, ...] = ()
    study: str | None = None
    chosen: TrialResult | None = None
    importances: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class FoldResult:
    """Out-of-fold metrics of one fold, named as in :data:`tilewise.metrics.METRICS`."""

    fold: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class CurvePoint:
    """Out-of-fold efficiency of a model that learnt from `n` problems, or has `n` trees."""

    n: int
    mean_efficiency: float
    p10_efficiency: float


@dataclass(frozen=True)
class OutOfFold:
    """Predictions of all tested rows, each by the fold that did not train on its group.

    Attributes:
        problem: number of each row's problem, from 0, of shape (rows,).
        kernel: index into the pool, of shape (rows,).
        measured: measured TFLOPS, of shape (rows,).
        predicted: predicted TFLOPS, of shape (rows,).
        efficiency: efficiency of the kernel that the model would select, of shape (problems,).
    """

    problem: npt.NDArray[np.int64]
    kernel: npt.NDArray[np.int64]
    measured: npt.NDArray[np.float64]
    predicted: npt.NDArray[np.float64]
    efficiency: npt.NDArray[np.float64]


@dataclass(frozen=True)
class TrainingResult:
    """The result of one training; it does not depend on time or place.

    Attributes:
        target: the target.
        settings: the settings used.
        params: all parameters of the final trees, tuned ones included, flat, as logged.
        parts: input of :func:`tilewise.model.write_artefact`.
        folds: out-of-fold metrics per fold.
        cv_metrics: out-of-fold metrics over the training problems that can be judged.
        tuning: result of the parameter search.
        feature_importances: total gain per feature, largest first.
        out_of_fold: the predictions behind `cv_metrics`.
        by_trees: learning curve by number of trees.
        by_problems: learning curve by number of training problems, with fewer trees and on one fold; empty for a
            continued model, which has seen all of them.
        data_hash: SHA-256 of the input table, see :func:`tilewise.data.table_hash`.
        n_problems: training problems.
        n_rows: training rows.
        n_holdout_problems: problems of the table that training never saw.
        split_rule: description of folds and holdout, printed beside figures.
    """

    target: Target
    settings: TrainSettings
    params: Mapping[str, float | int | str]
    parts: ArtefactParts
    folds: tuple[FoldResult, ...]
    cv_metrics: Mapping[str, float]
    tuning: TuningResult
    feature_importances: Mapping[str, float]
    out_of_fold: OutOfFold
    by_trees: tuple[CurvePoint, ...]
    by_problems: tuple[CurvePoint, ...]
    data_hash: str
    n_problems: int
    n_rows: int
    n_holdout_problems: int
    split_rule: str

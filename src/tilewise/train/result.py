"""What a training hands on: the parts of the model's folder, and everything worth logging."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tilewise.ops import Target
from tilewise.train.settings import ModelSettings, TrainSettings

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tilewise.model.artefact import ArtefactParts

TrialState = Literal["complete", "pruned", "failed"]


@dataclass(frozen=True)
class TrialRecord:
    """One tuning trial.

    Attributes:
        number: counted from 0, in the study.
        params: the tuned parameters.
        value: mean of `fold_values`; NaN where a failed trial saw no fold.
        fold_values: the first objective, one a fold seen; a pruned trial saw fewer.
        state: ``pruned`` trials stopped early as hopeless, ``failed`` ones were killed or interrupted.
        values: every objective, mean over the folds seen.
        given: whether the parameters are those that tuning started from.
    """

    number: int
    params: Mapping[str, float | int]
    value: float
    fold_values: tuple[float, ...]
    state: TrialState
    values: Mapping[str, float]
    given: bool


@dataclass(frozen=True)
class Tuning:
    """What a search for parameters found.

    Attributes:
        model: the parameters to train with.
        trials: of the study that are over, those of earlier calls included; empty where nothing was searched.
        study: its name.
        chosen: the trial whose parameters `model` has.
        importances: share of each parameter, see :func:`tilewise.train.study.importances`.
    """

    model: ModelSettings
    trials: tuple[TrialRecord, ...] = ()
    study: str | None = None
    chosen: TrialRecord | None = None
    importances: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class FoldRecord:
    """Out-of-fold metrics of one fold: names as in :data:`tilewise.metrics.METRICS`."""

    fold: int
    metrics: Mapping[str, float]


@dataclass(frozen=True)
class CurvePoint:
    """How well a model selects, out of fold, that learnt from `n` problems or has `n` trees."""

    n: int
    mean_efficiency: float
    p10_efficiency: float


@dataclass(frozen=True)
class OutOfFold:
    """Every row that was tested on, predicted by the fold that did not see its group.

    Attributes:
        problem: (rows,) which problem a row belongs to, counted from 0.
        kernel: (rows,) index into the pool.
        measured: (rows,) TFLOPS.
        predicted: (rows,) TFLOPS.
        efficiency: (problems,) efficiency of the kernel that the model would select.
    """

    problem: npt.NDArray[np.int64]
    kernel: npt.NDArray[np.int64]
    measured: npt.NDArray[np.float64]
    predicted: npt.NDArray[np.float64]
    efficiency: npt.NDArray[np.float64]


@dataclass(frozen=True)
class TrainingResult:
    """The outcome of one training; nothing in it depends on the time or the place.

    Attributes:
        target: what was trained for.
        settings: as given.
        params: every parameter of the final trees, tuned ones included, flat, as logged.
        parts: what :func:`tilewise.model.artefact.write_artefact` writes.
        folds: out-of-fold metrics, one a fold.
        cv_metrics: out-of-fold metrics over the training problems that a selection can be judged on.
        tuning: what the search for parameters found.
        feature_importances: total gain by feature, largest first.
        out_of_fold: the predictions behind `cv_metrics`.
        by_trees: learning curve, as trees grow.
        by_problems: learning curve, by problems learnt from, with fewer trees and on one fold; empty where a model was
            continued, which knows them all.
        data_hash: SHA-256 of the table as handed in (see :func:`tilewise.data.digest.table_hash`).
        n_problems: problems trained on.
        n_rows: rows trained on.
        n_holdout_problems: problems of the table that training never saw.
        split_rule: how folds and holdout were split, in words, to be printed beside figures.
    """

    target: Target
    settings: TrainSettings
    params: Mapping[str, float | int | str]
    parts: ArtefactParts
    folds: tuple[FoldRecord, ...]
    cv_metrics: Mapping[str, float]
    tuning: Tuning
    feature_importances: Mapping[str, float]
    out_of_fold: OutOfFold
    by_trees: tuple[CurvePoint, ...]
    by_problems: tuple[CurvePoint, ...]
    data_hash: str
    n_problems: int
    n_rows: int
    n_holdout_problems: int
    split_rule: str

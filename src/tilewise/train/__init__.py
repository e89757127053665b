"""Train models that rank kernels: labels, grouped cross-validation, parameter search, fit, and confidence.

`train` and `continue_training` take a measurement table, a pool and settings, and give a :class:`TrainingResult`, whose
parts `tilewise.model.write_artefact` writes. Training never sees holdout problems. It imports data, features, kernels
and model; it never imports evaluate, registry or dispatch. Used by the command line, planning and benchmarks.
"""

from __future__ import annotations

from tilewise.train._boosting import Bins, Fit
from tilewise.train._cross_validation import (
    Fold,
    TrainingData,
    cross_validate,
    fold_score,
    make_folds,
    selections_by_score,
)
from tilewise.train._dataset import Floats, Ints, Table, build_table, renumbered
from tilewise.train._feature_selection import rank_features, select_features
from tilewise.train._fit import Callbacks, continue_training, train
from tilewise.train._provenance import git_revision, source_changes
from tilewise.train._ranking import MOST_RESIDUAL
from tilewise.train._settings import ModelSettings, TrainSettings, settings_from_config, with_params
from tilewise.train._training_labels import Labels, make_labels
from tilewise.train._training_pool import pool_of
from tilewise.train._training_result import (
    CurvePoint,
    FoldResult,
    OutOfFold,
    TrainingResult,
    TrialResult,
    TuningResult,
)
from tilewise.train._tune_settings import TuneSettings, space_from_config
from tilewise.train._warm_start import BaseModel

__all__ = [
    "MOST_RESIDUAL",
    "BaseModel",
    "Bins",
    "Callbacks",
    "CurvePoint",
    "Fit",
    "Floats",
    "Fold",
    "FoldResult",
    "Ints",
    "Labels",
    "ModelSettings",
    "OutOfFold",
    "Table",
    "TrainSettings",
    "TrainingData",
    "TrainingResult",
    "TrialResult",
    "TuneSettings",
    "TuningResult",
    "build_table",
    "continue_training",
    "cross_validate",
    "fold_score",
    "git_revision",
    "make_folds",
    "make_labels",
    "pool_of",
    "rank_features",
    "renumbered",
    "select_features",
    "selections_by_score",
    "settings_from_config",
    "source_changes",
    "space_from_config",
    "train",
    "with_params",
]

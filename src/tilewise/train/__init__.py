"""Train models that rank kernels: labels, grouped cross-validation, parameter search, fit, and confidence.

`train` and `continue_training` take a measurement table, a pool and settings, and give a :class:`TrainingResult`, whose
parts `tilewise.model.write_artefact` writes. Training never sees holdout problems. It imports data, features, kernels
and model; it never imports evaluate, registry or dispatch. Members load
lazily: checking settings needs no LightGBM. Used by the command line, planning and benchmarks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewise._lazy import lazy_face

if TYPE_CHECKING:
    from tilewise.train._boosting import Bins as Bins
    from tilewise.train._boosting import Fit as Fit
    from tilewise.train._cross_validation import Fold as Fold
    from tilewise.train._cross_validation import TrainingData as TrainingData
    from tilewise.train._cross_validation import cross_validate as cross_validate
    from tilewise.train._cross_validation import fold_score as fold_score
    from tilewise.train._cross_validation import make_folds as make_folds
    from tilewise.train._cross_validation import selections_by_score as selections_by_score
    from tilewise.train._dataset import Floats as Floats
    from tilewise.train._dataset import Ints as Ints
    from tilewise.train._dataset import Table as Table
    from tilewise.train._dataset import build_table as build_table
    from tilewise.train._dataset import renumbered as renumbered
    from tilewise.train._dataset import with_teachers as with_teachers
    from tilewise.train._feature_selection import rank_features as rank_features
    from tilewise.train._feature_selection import select_features as select_features
    from tilewise.train._fit import Callbacks as Callbacks
    from tilewise.train._fit import continue_training as continue_training
    from tilewise.train._fit import train as train
    from tilewise.train._provenance import git_revision as git_revision
    from tilewise.train._provenance import source_changes as source_changes
    from tilewise.train._ranking import MOST_RESIDUAL as MOST_RESIDUAL
    from tilewise.train._settings import ModelSettings as ModelSettings
    from tilewise.train._settings import TrainSettings as TrainSettings
    from tilewise.train._settings import settings_from_config as settings_from_config
    from tilewise.train._settings import with_params as with_params
    from tilewise.train._training_labels import Labels as Labels
    from tilewise.train._training_labels import make_labels as make_labels
    from tilewise.train._training_pool import MIN_MEASURED_SHARE as MIN_MEASURED_SHARE
    from tilewise.train._training_pool import pool_of as pool_of
    from tilewise.train._training_result import CurvePoint as CurvePoint
    from tilewise.train._training_result import FoldResult as FoldResult
    from tilewise.train._training_result import OutOfFold as OutOfFold
    from tilewise.train._training_result import TrainingResult as TrainingResult
    from tilewise.train._training_result import TrialResult as TrialResult
    from tilewise.train._training_result import TuningResult as TuningResult
    from tilewise.train._tune_settings import TuneSettings as TuneSettings
    from tilewise.train._tune_settings import space_from_config as space_from_config
    from tilewise.train._warm_start import BaseModel as BaseModel

__all__, __getattr__ = lazy_face(
    __name__,
    {
        "_boosting": (
            "Bins",
            "Fit",
        ),
        "_cross_validation": (
            "Fold",
            "TrainingData",
            "cross_validate",
            "fold_score",
            "make_folds",
            "selections_by_score",
        ),
        "_dataset": (
            "Floats",
            "Ints",
            "Table",
            "build_table",
            "renumbered",
            "with_teachers",
        ),
        "_feature_selection": (
            "rank_features",
            "select_features",
        ),
        "_fit": (
            "Callbacks",
            "continue_training",
            "train",
        ),
        "_provenance": (
            "git_revision",
            "source_changes",
        ),
        "_ranking": ("MOST_RESIDUAL",),
        "_settings": (
            "ModelSettings",
            "TrainSettings",
            "settings_from_config",
            "with_params",
        ),
        "_training_labels": (
            "Labels",
            "make_labels",
        ),
        "_training_pool": ("MIN_MEASURED_SHARE", "pool_of"),
        "_training_result": (
            "CurvePoint",
            "FoldResult",
            "OutOfFold",
            "TrainingResult",
            "TrialResult",
            "TuningResult",
        ),
        "_tune_settings": (
            "TuneSettings",
            "space_from_config",
        ),
        "_warm_start": ("BaseModel",),
    },
)

"""Learning to rank kernels: labels, grouped cross-validation, tuning, fitting."""

from tilewise.train.fit import train
from tilewise.train.pool import pool_of
from tilewise.train.result import FoldRecord, OutOfFold, TrainingResult, TrialRecord
from tilewise.train.settings import ModelSettings, TrainSettings, TuneSettings

__all__ = [
    "FoldRecord",
    "ModelSettings",
    "OutOfFold",
    "TrainSettings",
    "TrainingResult",
    "TrialRecord",
    "TuneSettings",
    "pool_of",
    "train",
]

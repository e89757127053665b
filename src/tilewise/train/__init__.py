"""Learning to rank kernels: labels, grouped cross-validation, tuning, fitting."""

import os

# LightGBM opens a parallel region for every tree node, and OpenMP's threads by default spin at the end of each: on a
# machine that does anything else besides, one waits for a thread that is not running. 78 s where sleeping took 2 s.
# It has to stand before the library loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

from tilewise.train.fit import train
from tilewise.train.pool import pool_of
from tilewise.train.result import FoldRecord, OutOfFold, TrainingResult, TrialRecord, Tuning
from tilewise.train.settings import ModelSettings, TrainSettings
from tilewise.train.tune_settings import TuneSettings
from tilewise.train.warm import Base

__all__ = [
    "Base",
    "FoldRecord",
    "ModelSettings",
    "OutOfFold",
    "TrainSettings",
    "TrainingResult",
    "TrialRecord",
    "TuneSettings",
    "Tuning",
    "pool_of",
    "train",
]

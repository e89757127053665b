"""One small table and one small training for all tests of this package."""

from __future__ import annotations

import pandas as pd
import pytest

from synthetic import CONV, measurements
from tilewise.arch import load_arch
from tilewise.ops import Target
from tilewise.train import (
    ModelSettings,
    Table,
    TrainingData,
    TrainingResult,
    TrainSettings,
    TuneSettings,
    TuningResult,
    build_table,
    make_folds,
    pool_of,
    train,
)
from tilewise.train.tuning import tune

TARGET = Target.parse(CONV)


@pytest.fixture(scope="session")
def frame() -> pd.DataFrame:
    return measurements(n_problems=45, n_kernels=16, repeats=6, seed=2)


@pytest.fixture(scope="session")
def table(frame: pd.DataFrame) -> Table:
    return build_table(frame, TARGET, pool_of(frame, TARGET), load_arch("sm90"), 0.18)


@pytest.fixture(scope="session")
def settings() -> TrainSettings:
    model = ModelSettings(n_estimators=60, num_leaves=15, learning_rate=0.15)
    return TrainSettings(model, TuneSettings(n_trials=3, n_estimators=20, n_folds=2), n_splits=3, threads=1)


@pytest.fixture(scope="session")
def result(frame: pd.DataFrame, settings: TrainSettings) -> TrainingResult:
    return train(frame, TARGET, pool_of(frame, TARGET), load_arch("sm90"), settings)


def search(table: Table, settings: TrainSettings) -> TuningResult:
    """Return the result of tuning on `table`."""
    return tune(TrainingData.prepare(table, settings), make_folds(table, settings.n_splits, settings.seed))[0]

"""A training on a cluster gives the bytes of a training in this process; a killed worker costs its trial only."""

from __future__ import annotations

import dataclasses
import os
import pickle
import re
import signal
import sqlite3
import threading
import time
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from campaigns.plan.test_propose import FRAME, _whole
from campaigns.plan.test_propose import SETTINGS as PLAN
from synthetic import CONV, measurements
from tilewise.arch import load_arch
from tilewise.campaigns.plan import propose
from tilewise.cluster import LOCAL, ClusterSettings, Executor, open_executor
from tilewise.model import ArtefactParts, write_artefact
from tilewise.ops import Target
from tilewise.train import (
    BaseModel,
    Callbacks,
    ModelSettings,
    TrainingData,
    TrainingResult,
    TrainSettings,
    TuneSettings,
    build_table,
    continue_training,
    make_folds,
    pool_of,
    train,
)
from tilewise.train.tuning import tune

TARGET = Target.parse(CONV)
SETTINGS = TrainSettings(
    ModelSettings(n_estimators=30, num_leaves=15), TuneSettings(n_trials=3, n_estimators=10, n_folds=2), n_splits=3
)
pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def frame() -> pd.DataFrame:
    return measurements(n_problems=40, n_kernels=16, repeats=4, seed=2)


def trained(frame: pd.DataFrame, settings: TrainSettings, executor: Executor) -> TrainingResult:
    pool = pool_of(frame, TARGET)
    return train(frame, TARGET, pool, load_arch("sm90"), settings, Callbacks(executor=executor))


def with_storage(path: Path, **changes: object) -> TrainSettings:
    budget = dataclasses.replace(SETTINGS.tune, storage=f"sqlite:///{path}", **changes)  # type: ignore[arg-type]
    return dataclasses.replace(SETTINGS, tune=budget)


def test_the_model_has_the_same_bytes(frame: pd.DataFrame, executor: Executor, tmp_path: Path) -> None:
    here, there = (trained(frame, SETTINGS, executor) for executor in (LOCAL, executor))
    assert here.cv_metrics == there.cv_metrics
    assert here.by_problems == there.by_problems
    assert here.by_trees == there.by_trees
    for result, folder in ((here, "here"), (there, "there")):
        write_artefact(tmp_path / folder, result.parts)
    files = sorted(path.name for path in (tmp_path / "here").iterdir())
    assert files == sorted(path.name for path in (tmp_path / "there").iterdir())
    assert [n for n in files if (tmp_path / "here" / n).read_bytes() != (tmp_path / "there" / n).read_bytes()] == []


def test_two_workers_learn_one_model_as_good_as_that_of_one(frame: pd.DataFrame, dask: Any) -> None:
    address = dask.scheduler_address
    with open_executor(ClusterSettings(kind="dask", address=address, machines=2)) as together:
        there = trained(frame, SETTINGS, together)
    here = trained(frame, SETTINGS, LOCAL)
    assert abs(there.cv_metrics["mean_efficiency"] - here.cv_metrics["mean_efficiency"]) < 0.02
    assert there.parts.booster_text != here.parts.booster_text
    assert there.parts.booster_text.count("Tree=") == here.parts.booster_text.count("Tree=")
    assert [f.metrics.keys() for f in there.folds] == [f.metrics.keys() for f in here.folds]


def test_two_workers_continue_a_model_as_one_does(frame: pd.DataFrame, dask: Any, tmp_path: Path) -> None:
    settings = dataclasses.replace(SETTINGS, model=dataclasses.replace(SETTINGS.model, warm_estimators=10))
    write_artefact(tmp_path / "base", trained(frame, settings, LOCAL).parts)
    base = BaseModel.load(tmp_path / "base")
    new = measurements(n_problems=60, n_kernels=16, repeats=4, seed=7)
    with open_executor(ClusterSettings(kind="dask", address=dask.scheduler_address, machines=2)) as together:
        there = continue_training(new, TARGET, base, settings, Callbacks(executor=together))
    here = continue_training(new, TARGET, base, settings)
    before, alone, shared = (trees(parts) for parts in (base.parts, here.parts, there.parts))
    assert alone[:30] == shared[:30] == before
    assert len(alone) == len(shared) == 40
    assert alone[30:] != shared[30:]
    assert abs(there.cv_metrics["mean_efficiency"] - here.cv_metrics["mean_efficiency"]) < 0.02


def trees(parts: ArtefactParts) -> list[str]:
    """Return the texts of a model's trees, without the trailer of the last."""
    return re.split(r"^Tree=\d+$", parts.booster_text.partition("end of trees")[0], flags=re.MULTILINE)[1:]


def test_a_plan_is_the_same(executor: Executor) -> None:
    here, there = (propose(FRAME, _whole("next"), PLAN, holdout_fraction=0.18, executor=e) for e in (LOCAL, executor))
    assert here.plan == there.plan


def test_trials_of_several_workers_are_one_study(frame: pd.DataFrame, executor: Executor, tmp_path: Path) -> None:
    settings = with_storage(tmp_path / "study.db", n_trials=6)
    result = trained(frame, settings, executor)
    assert [t.number for t in result.tuning.trials] == list(range(6))
    assert result.tuning.trials[0].is_initial
    alone = trained(frame, with_storage(tmp_path / "alone.db", n_trials=6), LOCAL)
    first = result.tuning.trials[0], alone.tuning.trials[0]
    assert first[0] == first[1]  # the same trial has the same value anywhere


def test_the_trial_of_a_killed_worker_is_repeated(frame: pd.DataFrame, executor: Executor, tmp_path: Path) -> None:
    from tilewise.cluster._dask import DaskExecutor

    assert isinstance(executor, DaskExecutor)
    settings = with_storage(tmp_path / "study.db", n_trials=6, n_estimators=400, prune_gap=1.0, early_stopping=0)
    table = build_table(frame, TARGET, pool_of(frame, TARGET), load_arch("sm90"), 0.18)
    data, pids = TrainingData.prepare(table, settings), executor.client.run(os.getpid)

    def kill_one() -> None:
        """Kill a worker process once each runs a trial whose parameters are known."""
        while unfinished(tmp_path / "study.db") != [True] * len(pids):
            time.sleep(0.05)
        os.kill(next(iter(pids.values())), signal.SIGKILL)

    killer = threading.Thread(target=kill_one)
    killer.start()
    tuning, _ = tune(data, make_folds(table, settings.n_splits, settings.seed), executor=executor)
    killer.join()
    assert unfinished(tmp_path / "study.db") == []
    states = [t.state for t in tuning.trials]
    assert states.count("failed") == 1
    assert states.count("complete") == 6
    lost = next(t for t in tuning.trials if t.state == "failed")
    assert [t.params for t in tuning.trials].count(lost.params) == 2


def unfinished(path: Path) -> list[bool]:
    """Return for each trial that waits or runs whether it has parameters; read past Optuna, which would make tables."""
    query = (
        "SELECT (SELECT COUNT(*) FROM trial_user_attributes AS a WHERE a.trial_id = t.trial_id AND a.key = 'params')"
        " FROM trials AS t WHERE t.state IN ('RUNNING', 'WAITING')"
    )
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True)) as database:
            return [bool(count) for (count,) in database.execute(query)]
    except sqlite3.OperationalError:  # there is no table yet
        return []


def test_prepared_data_survives_pickling(frame: pd.DataFrame) -> None:
    table = build_table(frame, TARGET, pool_of(frame, TARGET), load_arch("sm90"), 0.18)
    data = TrainingData.prepare(table, SETTINGS)
    copy = pickle.loads(pickle.dumps(data))
    np.testing.assert_array_equal(copy.table.matrix, table.matrix)
    assert copy.table.features == table.features
    assert copy.baselines._table is copy.table

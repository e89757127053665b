"""A study survives its process: the same trials as without the break, nothing mixed up, nothing lost."""

from __future__ import annotations

import dataclasses
import os
import signal
import sqlite3
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import optuna
import pytest

from synthetic import CONV
from tilewise.errors import ConfigError
from tilewise.train import Bins, ModelSettings, Table, TrainingData, TrainSettings, TuneSettings, make_folds
from tilewise.train._boosting import Growth
from tilewise.train.tuning import _study as studies
from tilewise.train.tuning import tune
from tilewise.train.tuning._study import FoldPruner, fingerprint, parameter_importances
from train.conftest import search

SETTINGS = TrainSettings(
    ModelSettings(label="relative", num_leaves=50),
    TuneSettings(n_trials=6, n_estimators=6, n_folds=2, space={"num_leaves": (3, 31), "lambda_l2": (0.1, 10.0)}),
    n_splits=3,
    threads=1,
)


@pytest.fixture
def storage(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/new/optuna.db"


def with_tune(**changes: object) -> TrainSettings:
    return dataclasses.replace(SETTINGS, tune=dataclasses.replace(SETTINGS.tune, **changes))  # type: ignore[arg-type]


class TestResume:
    @pytest.mark.long
    def test_a_study_in_two_calls_is_that_of_one(self, table: Table, storage: str) -> None:
        alone = search(table, SETTINGS)
        first = search(table, with_tune(storage=storage, n_trials=3))
        assert first.trials == alone.trials[:3]
        assert search(table, with_tune(storage=storage)) == alone
        assert search(table, with_tune(storage=storage, n_trials=2)).trials == alone.trials  # nothing left to do

    @pytest.mark.long
    def test_trials_that_learn_from_others_go_on_alike(
        self, table: Table, storage: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(studies, "STARTUP_TRIALS", 2)  # so that TPE has its say
        search(table, with_tune(storage=storage, n_trials=4))
        assert search(table, with_tune(storage=storage)) == search(table, SETTINGS)

    @pytest.mark.long
    def test_a_killed_trial_fails_and_is_repeated(
        self, table: Table, storage: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(studies, "HEARTBEAT_S", 1)
        monkeypatch.setattr(studies, "GRACE_S", 2)
        search(table, with_tune(storage=storage, n_trials=2))
        self._die_in_a_trial(storage)
        time.sleep(4)
        trials = search(table, with_tune(storage=storage, n_trials=3)).trials
        assert [t.state for t in trials][2:] == ["failed", trials[3].state]
        assert trials[3].state != "failed"
        assert trials[3].params["num_leaves"] == 7  # as in the killed trial
        assert sum(t.state != "failed" for t in trials) == 3

    @staticmethod
    def _die_in_a_trial(storage: str) -> None:
        code = f"""
import os, signal, time
import numpy as np
import optuna
storage = optuna.storages.RDBStorage({storage!r}, heartbeat_interval=1, grace_period=2)
(name,) = optuna.get_all_study_names(storage)
study = optuna.load_study(study_name=name, storage=storage)
def die(trial):
    trial.suggest_int("num_leaves", 3, 31, log=True)
    time.sleep(1)  # until its first heartbeat is written
    os.kill(os.getpid(), signal.SIGKILL)
study.enqueue_trial({{"num_leaves": 7}})
study.optimize(die, n_trials=1)
"""
        done = subprocess.run([sys.executable, "-c", code], env=os.environ, capture_output=True, text=True)
        assert done.returncode == -signal.SIGKILL, done.stderr

    @pytest.mark.long
    def test_an_interrupted_search_keeps_its_trials(
        self, table: Table, storage: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def interrupt(self: FoldPruner, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
            if trial.number == 2:
                raise KeyboardInterrupt
            return False

        with monkeypatch.context() as patch:
            patch.setattr(FoldPruner, "prune", interrupt)
            with pytest.raises(KeyboardInterrupt):
                search(table, with_tune(storage=storage))
        states = [t.state for t in search(table, with_tune(storage=storage)).trials]
        assert states[2] == "failed"
        assert len(states) - states.count("failed") == SETTINGS.tune.n_trials


class TestWhatIsComparable:
    def test_another_study_for_other_data_or_settings(self, table: Table) -> None:
        def mark(settings: TrainSettings, of: Table = table) -> str:
            return fingerprint(of, make_folds(of, settings.n_splits, settings.seed), settings)

        base = mark(SETTINGS)
        assert mark(with_tune(n_trials=50, workers=2, storage="sqlite:///x", prune_gap=0.1, patience=3)) == base
        started_elsewhere = dataclasses.replace(SETTINGS, model=dataclasses.replace(SETTINGS.model, num_leaves=9))
        assert mark(started_elsewhere) == base
        others = {
            "label": dataclasses.replace(SETTINGS, model=ModelSettings(label="log1p")),
            "learning rate": dataclasses.replace(SETTINGS, model=ModelSettings(label="relative", learning_rate=0.2)),
            "folds": dataclasses.replace(SETTINGS, n_splits=4),
            "seed": dataclasses.replace(SETTINGS, seed=1),
            "objectives": with_tune(objectives=("mean",)),
            "space": with_tune(space={"num_leaves": (3, 32), "lambda_l2": (0.1, 10.0)}),
            "trees": with_tune(n_estimators=7),
        }
        marks = {name: mark(settings) for name, settings in others.items()}
        faster = dataclasses.replace(table, tflops=table.tflops * 1.01)
        marks["data"] = mark(SETTINGS, faster)
        assert len({base, *marks.values()}) == 1 + len(marks)

    def test_a_named_study_of_other_settings_is_refused(self, table: Table, storage: str) -> None:
        search(table, with_tune(storage=storage, study="mine", n_trials=2))
        assert search(table, with_tune(storage=storage, study="mine", n_trials=2)).study == "mine"
        with pytest.raises(ConfigError, match=r"tune.study=mine holds .* other data, folds or settings \(\w{12}"):
            search(table, with_tune(storage=storage, study="mine", n_estimators=7))

    @pytest.mark.long
    def test_the_default_name_keeps_studies_apart(self, table: Table, storage: str) -> None:
        names = {search(table, with_tune(storage=storage, n_trials=2, n_estimators=n)).study for n in (2, 3)}
        assert len(names) == 2
        assert all(name and name.startswith(f"{CONV}-") for name in names)


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("nonsense", "tune.storage=nonsense cannot be used: .*parse"),
        ("nosuch:///x.db", "tune.storage=nosuch:///x.db cannot be used"),
        ("postgresql://me:secret@127.0.0.1:9/x", r"tune.storage=postgresql://me:\*\*\*@127.0.0.1:9/x cannot be used"),
    ],
)
def test_a_storage_that_cannot_be_used_is_named(table: Table, url: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        search(table, with_tune(storage=url))
    assert "secret" not in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_no_database_is_named(table: Table, tmp_path: Path) -> None:
    (tmp_path / "no.db").write_text("not a database at all, but long enough to be looked at" * 50)
    with pytest.raises(ConfigError, match=r"no\.db cannot be used: "):
        search(table, with_tune(storage=f"sqlite:///{tmp_path}/no.db"))


@pytest.mark.long
def test_workers_share_a_study(table: Table, storage: str) -> None:
    settings = with_tune(storage=storage, workers=2, n_trials=7, prune_gap=1.0)
    tuning = search(table, settings)
    assert sum(t.state != "failed" for t in tuning.trials) == 7
    assert sum(t.is_initial for t in tuning.trials) == 1
    alone = {t.number: t for t in search(table, with_tune(n_trials=7, prune_gap=1.0)).trials}
    for trial in tuning.trials:  # STARTUP_TRIALS draw by number alone: values too must be those of a single process
        assert trial == alone[trial.number]
    with sqlite3.connect(storage.removeprefix("sqlite:///")) as database:
        assert database.execute("select count(*) from trials").fetchone() == (7,)


@pytest.mark.long
@pytest.mark.filterwarnings("ignore:Heartbeat of storage")  # ask() sends none
def test_two_workers_never_take_the_same_queued_trial(tmp_path: Path) -> None:
    for number in range(10):  # without the lock, about 4 in 10 pairs take one trial twice
        tune = TuneSettings(storage=f"sqlite:///{tmp_path}/{number}.db")
        first, second = (studies.open_study(CONV, "mark", tune, {"num_leaves": 15}) for _ in range(2))
        with ThreadPoolExecutor(2) as pool:
            asked = pool.map(lambda study: study.ask().number, (first, second))
            assert sorted(asked) == [0, 1]


def test_a_search_without_gain_ends(table: Table) -> None:
    tuning = search(table, with_tune(n_trials=40, patience=3, prune_gap=0.0))
    assert len(tuning.trials) < 40
    best = max((t for t in tuning.trials if t.state == "complete"), key=lambda t: t.value)
    assert len(tuning.trials) - 1 - best.number == 3


def test_several_objectives_give_a_front(table: Table) -> None:
    settings = with_tune(objectives=("mean", "p10", "selection_time"), n_trials=8, max_slowdown=1.0)
    tuning = search(table, settings)
    assert {t.state for t in tuning.trials} == {"complete"}
    given = tuning.trials[0]
    assert given.is_initial
    chosen = next(t for t in tuning.trials if t.params["num_leaves"] == tuning.model.num_leaves)
    assert chosen.values["selection_time"] <= given.values["selection_time"]
    small = min(tuning.trials, key=lambda t: t.params["num_leaves"])
    assert small.values["selection_time"] < given.values["selection_time"]  # fewer leaves, shorter paths


@pytest.mark.parametrize(
    ("best", "seen", "stops"),
    [
        ({5: 0.90, 11: 0.92}, {5: 0.894}, True),
        ({5: 0.90, 11: 0.92}, {5: 0.896}, False),
        ({5: 0.90, 11: 0.92}, {5: 0.90, 11: 0.916}, True),  # 0.7 of the gap is left after two folds
        ({5: 0.90, 11: 0.92}, {5: 0.90, 11: 0.917}, False),
        ({0: 0.80, 5: 0.90}, {0: 0.787}, True),  # after a sixth of the first, 2.4 times as much
        ({0: 0.80, 5: 0.90}, {0: 0.789}, False),
        ({0: 0.80, 5: 0.90}, {0: 0.80, 1: 0.1}, False),  # the best grew no further: nothing to compare with
        ({5: 0.90, 11: 0.85}, {5: 0.95}, False),
        (None, {5: 0.1}, False),
    ],
)
def test_a_trial_stops_if_it_lies_behind_the_best_at_the_same_step(
    best: dict[int, float] | None, seen: dict[int, float], stops: bool
) -> None:
    study = optuna.create_study(direction="maximize", pruner=FoldPruner(0.005))
    if best:
        study.add_trial(optuna.trial.create_trial(value=list(best.values())[-1], intermediate_values=best))
    trial = study.ask()
    assert not trial.should_prune()
    for step, value in seen.items():
        trial.report(value, step)
    assert trial.should_prune() == stops


def test_a_hopeless_trial_ends_within_its_first_fold(table: Table) -> None:
    """Trees of two leaves after such of many: no fold of theirs is grown to its end."""
    grown: list[int] = []

    class Counting(Bins):
        def grow(self, settings: ModelSettings, *args: Any, **options: Any) -> Iterator[Growth]:
            grown.append(0)
            for growth in super().grow(settings, *args, **options):
                grown[-1] = growth.n_trees
                yield growth

    settings = with_tune(n_trials=2, n_estimators=24, prune_gap=0.0, space={"num_leaves": (2, 3)}, early_stopping=0)
    folds = make_folds(table, settings.n_splits, settings.seed)
    data = dataclasses.replace(
        TrainingData.prepare(table, settings), bins=Counting(table.matrix, table.features.names, 255, 1)
    )
    given, other = tune(data, folds)[0].trials
    n_folds = settings.tune.n_folds
    assert (given.state, other.state) == ("complete", "pruned")
    assert grown[:n_folds] == [24] * n_folds
    assert len(grown) == n_folds + 1
    assert grown[-1] < 24
    assert len(other.fold_values) == 1


@pytest.mark.long
@pytest.mark.parametrize("n_objectives", [1, 2])
def test_important_is_what_tells_the_best_trials_not_the_worst(n_objectives: int) -> None:
    """X alone makes the best tenth, y the worst."""
    study = optuna.create_study(directions=[optuna.study.StudyDirection.MAXIMIZE] * n_objectives)
    rng = np.random.default_rng(0)
    uniform = optuna.distributions.FloatDistribution(0, 1)
    for x, y in rng.random((200, 2)).tolist():
        values = [2 + x if x > 0.9 else y, 0.0][:n_objectives]
        params = {"x": x, "y": y}
        study.add_trial(
            optuna.trial.create_trial(params=params, distributions=dict.fromkeys(params, uniform), values=values)
        )
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = parameter_importances(study)
    assert found["x"] > 2 * found["y"]

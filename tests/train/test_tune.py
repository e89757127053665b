"""Tuning is a bounded, seeded search that starts from the initial parameters."""

from __future__ import annotations

import dataclasses
import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as examples
from hypothesis import strategies as st

from tilewise.train import (
    Bins,
    ModelSettings,
    Table,
    TrainingData,
    TrainSettings,
    TuneSettings,
    TuningResult,
    cross_validate,
    make_folds,
)
from tilewise.train._boosting import Growth
from tilewise.train._cross_validation import CrossValidation, FoldTrees
from tilewise.train.tuning import tune
from train.conftest import search

SPACE = {"num_leaves": (3, 31), "feature_fraction": (0.2, 0.9)}
SETTINGS = TrainSettings(
    ModelSettings(label="relative", num_leaves=50),
    TuneSettings(n_trials=5, n_estimators=12, n_folds=2, space=SPACE),
    n_splits=3,
    threads=1,
)


def test_trials_are_recorded_and_the_best_is_taken(table: Table) -> None:
    tuning = search(table, SETTINGS)
    model, trials = tuning.model, tuning.trials
    assert [t.number for t in trials] == list(range(5))
    assert trials[0].params == {
        "num_leaves": 50,
        "feature_fraction": SETTINGS.model.feature_fraction,
    }  # as given, though outside the space
    for trial in trials[1:]:
        assert all(low <= trial.params[n] <= high for n, (low, high) in SPACE.items())
    for trial in trials:
        assert trial.value == pytest.approx(np.mean(trial.fold_values))
        assert len(trial.fold_values) == (2 if trial.state == "complete" else 1)
    best = max((t for t in trials if t.state == "complete"), key=lambda t: t.value)
    assert {n: getattr(model, n) for n in SPACE} == best.params
    assert model.n_estimators == SETTINGS.model.n_estimators  # not the trials'


def test_equal_seeds_search_alike(table: Table) -> None:
    assert search(table, SETTINGS) == search(table, SETTINGS)


@pytest.mark.parametrize("budget", [{"n_trials": 0}, {"n_trials": 1}, {"space": {}}])
def test_without_a_budget_the_given_parameters_stay(table: Table, budget: dict[str, object]) -> None:
    settings = dataclasses.replace(SETTINGS, tune=dataclasses.replace(SETTINGS.tune, **budget))  # type: ignore[arg-type]
    assert search(table, settings) == TuningResult(SETTINGS.model)


def bytes_of(validated: CrossValidation) -> dict[str, object]:
    """Return everything that a cross-validation tells, comparable bit by bit."""
    told: dict[str, object] = {name: array.tobytes() for name, array in vars(validated.out_of_fold).items()}
    grown = [(n, efficiency.tobytes()) for n, efficiency in validated.grown.items()]
    return told | {"log_scale": validated.log_scale.tobytes(), "folds": repr(validated.folds), "grown": grown}


class TestTreesOfTheBestTrial:
    """The cross-validation grows on what the best trial has grown, as if it had begun again."""

    @pytest.mark.long
    @given(
        label=st.sampled_from(["lambdarank", "regret", "relative"]),
        n_estimators=st.integers(1, 30),
        tried=st.integers(1, 30),
        early_stopping=st.integers(0, 8),
        n_trials=st.integers(2, 3),
        weighs=st.booleans(),  # trials differ in the weights of equal rows
    )
    @examples(max_examples=20, deadline=None)
    def test_gives_the_same_bytes(
        self, table: Table, label: str, n_estimators: int, tried: int, early_stopping: int, n_trials: int, weighs: bool
    ) -> None:
        space = SPACE | ({"top_weight": (0.0, 8.0)} if weighs else {})
        settings = TrainSettings(
            ModelSettings(label=label, n_estimators=n_estimators, num_leaves=8, shortlist=6),
            TuneSettings(n_trials, tried, early_stopping=early_stopping, prune_gap=0.05, space=space),
            n_splits=3,
        )
        data, folds = TrainingData.prepare(table, settings), make_folds(table, 3, 0)
        tuning, grown = tune(data, folds)
        assert len(grown) == settings.tune.n_folds
        again = cross_validate(TrainingData.prepare(table, settings), folds, tuning.model)
        assert bytes_of(cross_validate(data, folds, tuning.model, grown=grown)) == bytes_of(again)

    def test_no_tree_is_grown_twice(self, table: Table) -> None:
        grown: list[tuple[ModelSettings, bytes]] = []

        class Counting(Bins):
            def grow(
                self, settings: ModelSettings, labels: Any, train: Any, *args: Any, **rest: Any
            ) -> Iterator[Growth]:
                grown.append((dataclasses.replace(settings, n_estimators=1), train.tobytes()))
                return super().grow(settings, labels, train, *args, **rest)

        bins = Counting(table.matrix, table.features.names, 255, 1)
        data = dataclasses.replace(TrainingData.prepare(table, SETTINGS), bins=bins)
        folds = make_folds(table, SETTINGS.n_splits, SETTINGS.seed)
        tuning, known = tune(data, folds)
        trials = len(grown)
        cross_validate(data, folds, tuning.model, grown=known)
        assert len(grown) == trials + SETTINGS.n_splits - SETTINGS.tune.n_folds
        assert len(set(grown)) == len(grown)

    def test_are_the_only_ones_kept(self, table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
        alive, most = weakref.WeakSet[FoldTrees](), list[int]()

        def watched(self: FoldTrees, *args: Any, **rest: Any) -> None:
            plain(self, *args, **rest)
            gc.collect()
            alive.add(self)
            most.append(len(alive))

        plain = FoldTrees.__init__
        monkeypatch.setattr(FoldTrees, "__init__", watched)
        settings = dataclasses.replace(SETTINGS, tune=dataclasses.replace(SETTINGS.tune, n_trials=8, prune_gap=1.0))
        gc.freeze()  # collections look at new objects only: those of all tests take a second
        _, grown = tune(TrainingData.prepare(table, settings), make_folds(table, 3, 0))
        gc.collect()
        gc.unfreeze()
        assert set(alive) == set(grown)
        assert len(most) == 8 * settings.tune.n_folds
        assert max(most) == 2 * settings.tune.n_folds  # those of the best trial, and of the one that runs

    def test_grow_again_after_a_later_call(self, table: Table, tmp_path: Path) -> None:
        stored = dataclasses.replace(SETTINGS.tune, storage=f"sqlite:///{tmp_path}/optuna.db")
        data = TrainingData.prepare(table, dataclasses.replace(SETTINGS, tune=stored))
        folds = make_folds(table, SETTINGS.n_splits, SETTINGS.seed)
        assert len(tune(data, folds)[1]) == stored.n_folds
        assert tune(data, folds)[1] == ()

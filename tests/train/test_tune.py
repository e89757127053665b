"""Tuning is a bounded, seeded search that starts from the initial parameters."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from tilewise.train import ModelSettings, Table, TrainSettings, TuneSettings, TuningResult
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

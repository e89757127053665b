"""Objectives of tuning trials, on figures typed by hand."""

from __future__ import annotations

from collections.abc import Sequence

import lightgbm as lgb
import numpy as np
import pytest

from tilewise.train import TrialResult, TuneSettings
from tilewise.train._training_result import TrialState
from tilewise.train.tuning import pareto_front
from tilewise.train.tuning._objectives import choose, efficiency_values, selection_time, trials_without_gain

ALL = ("mean", "p10", "selection_time")


def trial(number: int, *values: float, state: TrialState = "complete", names: Sequence[str] = ALL) -> TrialResult:
    by_name = dict(zip(names, values, strict=True))
    return TrialResult(number, {}, values[0], (values[0],), state, by_name, is_initial=number == 0)


def test_efficiencies_and_what_needs_the_trees() -> None:
    efficiency = np.array([0.5, 1.0, 1.0, 0.9, 0.8, 1.0, 1.0, 1.0, 1.0, 0.7, 1.0])  # P10 of eleven: the second lowest
    values = efficiency_values(("mean", "p10", "efficiency", "selection_time"), efficiency)
    assert values[:3] == pytest.approx([9.9 / 11, 0.7, (9.9 / 11 + 0.7) / 2])
    assert np.isnan(values[3])


def test_selection_time_counts_the_nodes_that_rows_visit() -> None:
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(400, 5)), rng.normal(size=400)
    params = {"objective": "regression", "num_leaves": 9, "verbosity": -1, "min_child_samples": 5, "seed": 0}
    booster = lgb.train(params, lgb.Dataset(features, labels), num_boost_round=7)
    leaves = booster.predict(features, pred_leaf=True)
    nodes = booster.trees_to_dataframe().set_index(["tree_index", "node_index"])["node_depth"] - 1  # the root is at 1
    visited = [nodes[t, f"{t}-L{leaf}"] for row in leaves for t, leaf in enumerate(row)]
    per_row = sum(visited) / len(features)
    assert selection_time(booster, 7, 30) == pytest.approx(30 * per_row / 1000)
    assert selection_time(booster, 70, 30) == pytest.approx(10 * 30 * per_row / 1000)  # a model of ten times the trees


def test_a_stump_less_tree_costs_nothing() -> None:
    booster = lgb.train({"verbosity": -1}, lgb.Dataset(np.zeros((50, 1)), np.zeros(50)), num_boost_round=1)
    assert selection_time(booster, 1, 30) == 0


def test_one_objective_takes_the_best_complete_trial_and_the_earlier_of_equals() -> None:
    names = ("mean",)
    trials = [trial(0, 0.8, names=names), trial(1, 0.9, names=names), trial(2, 0.9, names=names)]
    trials.append(trial(3, 0.95, names=names, state="pruned"))
    assert choose(trials, TuneSettings(objectives=names)) is trials[1]
    assert choose(trials[3:], TuneSettings(objectives=names)) is None


def test_what_is_taken_is_no_worse_than_the_given_on_any_fold() -> None:
    def folds(number: int, *values: float) -> TrialResult:
        value = float(np.mean(values))
        return TrialResult(number, {}, value, values, "complete", {"mean": value}, is_initial=number == 0)

    given, lucky, better, best = folds(0, 0.9, 0.8), folds(1, 0.99, 0.79), folds(2, 0.91, 0.81), folds(3, 0.91, 0.82)
    settings = TuneSettings(objectives=("mean",))
    assert choose([given, lucky], settings) is given
    assert choose([given, lucky, better, best], settings) is best
    assert choose([lucky, better], settings) is lucky  # the given ones were never tried to the end


@pytest.mark.parametrize(
    ("slack", "slowdown", "number"),
    [
        (0.01, 1.0, 3),  # in time: 0, 3 (4 is slower); of these P10 within a point of 0.92: 3 alone
        (0.03, 1.0, 0),  # 0 as well, and its mean is higher
        (0.01, 2.0, 4),  # now 4 is in time, with the best P10; 1 is still too slow
        (0.04, 9.0, 1),  # everything is in time
    ],
)
def test_of_a_front_the_best_mean_within_the_bounds_is_taken(slack: float, slowdown: float, number: int) -> None:
    trials = [
        trial(0, 0.96, 0.90, 10),
        trial(1, 0.99, 0.90, 90),
        trial(2, 0.95, 0.89, 10),  # beaten by the given one
        trial(3, 0.95, 0.92, 10),
        trial(4, 0.97, 0.93, 15),
    ]
    chosen = choose(trials, TuneSettings(objectives=ALL, p10_slack=slack, max_slowdown=slowdown))
    assert chosen is trials[number]


def test_what_beats_the_given_parameters_is_in_time_where_they_are() -> None:
    trials = [trial(0, 0.9, 0.8, 10), trial(1, 0.95, 0.9, 9)]
    assert choose(trials, TuneSettings(objectives=ALL)) is trials[1]


def test_the_front_holds_what_nothing_beats_and_of_equals_the_first() -> None:
    trials = [trial(0, 0.9, 0.8, 10), trial(1, 0.9, 0.8, 10), trial(2, 0.9, 0.8, 5), trial(3, 0.8, 0.9, 10)]
    assert pareto_front(trials, ALL) == [trials[2], trials[3]]


def test_trials_without_gain_are_counted_from_the_last_that_was_better() -> None:
    names = ("mean",)
    assert trials_without_gain([], names) == 0
    trials = [trial(0, 0.9, names=names), trial(1, 0.95, names=names), trial(2, 0.99, state="pruned", names=names)]
    assert trials_without_gain(trials, names) == 1
    trials += [trial(3, 0.95, names=names), trial(4, 0.2, names=names, state="failed")]
    assert trials_without_gain(trials, names) == 2  # as good is no gain, and a failed trial says nothing
    assert trials_without_gain([*trials, trial(5, 0.96, names=names)], names) == 0


def test_with_several_objectives_any_gain_counts() -> None:
    assert trials_without_gain([trial(0, 0.9, 0.8, 10), trial(1, 0.8, 0.7, 9)], ALL) == 0
    assert trials_without_gain([trial(0, 0.9, 0.8, 10), trial(1, 0.8, 0.7, 11)], ALL) == 1

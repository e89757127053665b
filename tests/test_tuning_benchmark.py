"""The benchmark of tuning, on a table small enough to search twice."""

from __future__ import annotations

import numpy as np
import pytest
from benchmarks.learning.tuned import held_back
from benchmarks.learning.tuning import part, run, text

from synthetic import CONV, measurements
from tilewise.arch import load_arch
from tilewise.ops import Target
from tilewise.train import ModelSettings, Table, TrainSettings, TuneSettings, build_table, make_folds, pool_of


@pytest.fixture(scope="module")
def table() -> Table:
    frame, target = measurements(n_problems=40, n_kernels=12, repeats=0, seed=3), Target.parse(CONV)
    return build_table(frame, target, pool_of(frame, target), load_arch("sm90"), 0.18)


def test_a_part_has_whole_problems(table: Table) -> None:
    some = part(table, 100)
    assert 100 <= len(some.problem) < 112
    assert np.bincount(some.problem).tolist() == [
        np.sum(table.problem == table.problems.index(p)) for p in some.problems
    ]
    assert len(part(table, 10**6).problem) == len(table.problem)


def test_both_searches_end_with_settings_of_the_space_and_figures(table: Table) -> None:
    space = {"num_leaves": (4.0, 31.0)}
    budget = TuneSettings(n_trials=3, n_estimators=8, n_folds=2, prune_gap=0.0, space=space)
    settings = TrainSettings(ModelSettings(label="relative", num_leaves=9), budget, n_splits=2, threads=1)
    result = run(table, settings)
    for name in ("plain", "tilewise", "given"):
        assert 4 <= result[name]["params"]["num_leaves"] <= 31
        assert 0 < result[name]["p10"] <= result[name]["mean"] <= 1
    assert result["ratio"] == result["tilewise"]["cpu_s"] / result["plain"]["cpu_s"]
    assert "3 trials x 2 folds x 8 trees" in text(result)


def test_tuned_settings_are_judged_on_the_folds_that_were_held_back(table: Table) -> None:
    base = ModelSettings(label="relative", n_estimators=4, num_leaves=9)
    seen = held_back(table, base, {"a": base, "b": base, "c": ModelSettings(label="log1p")}, [1, 2], 1, n_folds=3)
    n_problems = sum(len(fold.test) for fold in make_folds(table, 5, 0)[3:])
    assert {len(e) for of_seeds in seen.values() for e in of_seeds} == {n_problems}
    assert all((a == b).all() for a, b in zip(seen["a"], seen["b"], strict=True))
    assert any((a != c).any() for a, c in zip(seen["a"], seen["c"], strict=True))

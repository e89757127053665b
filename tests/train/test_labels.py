"""Labels follow the settings, and convert back to TFLOPS."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from tilewise.train import MOST_RESIDUAL, Labels, ModelSettings, Table, make_labels
from tilewise.train._training_labels import to_tflops


def learn(table: Table, **settings: Any) -> Labels:
    return make_labels(table, ModelSettings(**settings), np.zeros(len(table.problem)))


def test_residuals_lead_back_where_the_estimate_is_not_far_off(table: Table) -> None:
    off = np.random.default_rng(0).uniform(-0.5, 0.5, len(table.problem))
    baseline = np.log(table.tflops) + off
    values = make_labels(table, ModelSettings(label="residual"), baseline).values
    assert to_tflops("residual", baseline + values, np.zeros_like(values)) == pytest.approx(table.tflops)
    wild = make_labels(table, ModelSettings(label="residual"), baseline + 5 * np.sign(off)).values
    assert set(np.abs(wild)) == {MOST_RESIDUAL}


def test_relative_labels_are_zero_for_the_best_kernel_of_each_problem(table: Table) -> None:
    values = learn(table, label="relative", label_floor=0).values
    assert np.maximum.reduceat(values, np.flatnonzero(np.diff(table.problem, prepend=-1))).tolist() == [0.0] * len(
        table.problems
    )
    assert to_tflops("relative", values, np.log(table.best)[table.problem]) == pytest.approx(table.tflops)


def test_log1p_labels_lead_back(table: Table) -> None:
    values = learn(table, label="log1p").values
    assert to_tflops("log1p", values, np.zeros_like(values)) == pytest.approx(table.tflops)


def test_predicted_tflops_are_positive() -> None:
    assert (to_tflops("log1p", np.array([-1.0, 0.0]), np.zeros(2)) > 0).all()


def test_the_floor_lifts_hopeless_kernels_only(table: Table) -> None:
    plain = learn(table, label="relative", label_floor=0).values
    floored = learn(table, label="relative", label_floor=0.2).values
    assert plain.min() < np.log(0.2)
    assert np.array_equal(floored, np.maximum(plain, np.log(0.2)))


def test_weights_follow_efficiency(table: Table) -> None:
    assert learn(table, label="relative", top_weight=0).weight is None
    weight = learn(table, label="relative", top_weight=2, weight_floor=0).weight
    assert weight is not None
    assert weight == pytest.approx(table.efficiency**2)


def test_bad_kernels_weigh_no_less_than_the_floor(table: Table) -> None:
    weight = learn(table, label="relative", top_weight=2, weight_floor=0.3).weight
    assert weight is not None
    assert table.efficiency.min() < 0.3
    assert weight == pytest.approx(np.where(table.efficiency < 0.3, 0.09, table.efficiency**2))


def test_noisy_rows_weigh_less(table: Table) -> None:
    noisy = dataclasses.replace(table, spread=np.where(table.kernel == 0, 0.02, 0.0))
    plain, less = (learn(noisy, label="relative", noise_floor=f).weight for f in (0.0, 0.02))
    assert plain is not None
    assert less is not None
    assert less == pytest.approx(np.where(table.kernel == 0, 0.5, 1.0) * plain)


def test_rows_of_problems_that_the_estimate_gets_wrong_weigh_more(table: Table) -> None:
    settings = ModelSettings(label="residual", top_weight=0, hard_weight=3)
    right = np.log(table.tflops)
    assert set(make_labels(table, settings, right).weight) == {1.0}  # type: ignore[arg-type]
    weight = make_labels(table, settings, np.where(table.problem == 0, -right, right)).weight
    assert weight is not None
    slowest = table.efficiency[table.problem == 0].min()
    assert weight == pytest.approx(np.where(table.problem == 0, 1 + 3 * (1 - slowest), 1.0))

"""Objectives over whole problems: their derivatives match their loss, and scores stay logarithms of rates."""

from __future__ import annotations

import numpy as np
import pytest

from tilewise.metrics import select
from tilewise.train import MOST_RESIDUAL, Bins, Fit, Labels, ModelSettings
from tilewise.train._ranking import REGRET_WEIGHT, SHARPNESS, TEMPERATURE, ExpectedRegret, LambdaRank, Objective, grades

RNG = np.random.default_rng(3)
PROBLEM = np.repeat(np.arange(4), [3, 1, 5, 4])
RATE = RNG.normal(5, 0.05, len(PROBLEM))
EFFICIENCY = np.exp(RATE - np.array([RATE[p == PROBLEM].max() for p in range(4)])[PROBLEM])
BASELINE, WEIGHT = RATE + RNG.normal(0, 0.05, len(PROBLEM)), EFFICIENCY**2
REGRET = ExpectedRegret(BASELINE, RATE, 1 - EFFICIENCY, WEIGHT, PROBLEM)
ALL = np.arange(len(PROBLEM))


def loss(added: np.ndarray) -> float:
    """As the docstring of ExpectedRegret has it."""
    score, total = BASELINE + added, 0.0
    for p in range(4):
        of = p == PROBLEM
        share = np.exp(score[of] / TEMPERATURE)
        total += REGRET_WEIGHT * float((share / share.sum()) @ (1 - EFFICIENCY[of]))
    return total + float(WEIGHT @ (score - RATE) ** 2) / 2


def test_slopes_are_those_of_the_loss() -> None:
    added = RNG.normal(0, 0.03, len(PROBLEM))
    slope, curvature = REGRET.gradients(ALL)(added)
    step = 1e-6
    numeric = [(loss(added + step * (i == ALL)) - loss(added - step * (i == ALL))) / (2 * step) for i in ALL]
    assert slope == pytest.approx(numeric, rel=1e-4, abs=1e-4)
    assert (curvature >= WEIGHT).all()


def test_a_lone_kernel_has_no_regret_and_residuals_are_bounded() -> None:
    added = np.full(len(PROBLEM), 9.0)
    slope, curvature = REGRET.gradients(ALL)(added)
    lone = np.flatnonzero(PROBLEM == 1)
    assert slope[lone] == pytest.approx(WEIGHT[lone] * MOST_RESIDUAL)
    assert curvature[lone] == pytest.approx(WEIGHT[lone])


def test_rows_of_some_problems_have_the_derivatives_they_have_among_all() -> None:
    added = RNG.normal(0, 0.03, len(PROBLEM))
    some = np.flatnonzero(np.isin(PROBLEM, [0, 2]))
    for among_all, alone in zip(REGRET.gradients(ALL)(added), REGRET.gradients(some)(added[some]), strict=True):
        assert among_all[some] == pytest.approx(alone)


def test_grades() -> None:
    assert grades(np.array([0.1, 0.5, 0.75, 0.9, 1.0])).tolist() == [0, 0, 8, 20, 31]  # 31 * .25 = 7.75, 31 * .64


@pytest.mark.parametrize("label", ["regret", "lambdarank"])
def test_trees_mend_the_order_and_keep_the_scale(label: str) -> None:
    """Every second kernel is 20 % slower than the baseline has it; scores remain log(TFLOPS)."""
    rng = np.random.default_rng(0)
    problem, kernel = np.repeat(np.arange(150), 8), np.tile(np.arange(8), 150)
    baseline = np.repeat(rng.normal(5, 1, 150), 8) + rng.normal(0, 0.1, 1200)
    rate = baseline - np.where(kernel % 2 == 0, 0.2, 0.0)
    best = np.maximum.reduceat(rate, np.flatnonzero(kernel == 0))[problem]
    efficiency = np.exp(rate - best)
    settings = ModelSettings(label=label, n_estimators=40, num_leaves=7, feature_fraction=1.0)
    objectives: dict[str, Objective] = {
        "regret": ExpectedRegret(baseline, rate, 1 - efficiency, efficiency**2, problem),
        "lambdarank": LambdaRank(baseline, problem, settings.lambda_l2),
    }
    bins = Bins(np.stack([kernel, rng.normal(size=1200)], axis=1), ("kernel", "noise"), 255, 1)
    train, test = np.flatnonzero(problem < 100), np.flatnonzero(problem >= 100)
    added = bins.fit_predict(settings, Labels(grades(efficiency), None, objectives[label]), train, test, Fit(0, 1))
    regrets = [
        1 - select(problem[test] - 100, np.exp(rate[test]), score).efficiency.mean()
        for score in (baseline[test], baseline[test] + added)
    ]
    assert regrets[1] < regrets[0] / 5
    assert np.median(np.abs(baseline[test] + added - rate[test])) < 0.15


def test_a_fit_by_squares_forgets_the_ranking_before_it() -> None:
    matrix = np.arange(40.0)[:, None]
    bins, rows, settings = Bins(matrix, ("x",), 255, 1), np.arange(40), ModelSettings(n_estimators=5, num_leaves=4)
    squares = Labels(matrix[:, 0] % 7, None)
    before = bins.fit_predict(settings, squares, rows, rows, Fit(0, 1))
    ranked = Labels(grades(matrix[:, 0] / 40), None, LambdaRank(matrix[:, 0] / SHARPNESS, rows // 8, 1.0))
    bins.fit_predict(settings, ranked, rows, rows, Fit(0, 1))
    assert bins.fit_predict(settings, squares, rows, rows, Fit(0, 1)).tolist() == before.tolist()

"""A bound holds with its probability for any distribution of losses; k is the first within the tolerance."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from calibrations import one_bin
from tilewise.errors import ArtefactError, ConfigError
from tilewise.metrics import DEPTH
from tilewise.model import COVARIATES, PARTS, Calibration, covariates_of
from tilewise.model._confidence import MOST_LOG
from tilewise.ops import GemmProblem

N = len(COVARIATES)
SQUARE = GemmProblem(M=1024, N=1024, K=1024)


def calibration(losses: np.ndarray, **change: Any) -> Calibration:
    """Return a calibration with one bin of (problems, DEPTH) losses."""
    tails = [-np.sort(-column[column > 0]) for column in losses.T]
    whole = one_bin(np.array([[1024, 1024, 1024], [64, 64, 64]]), 3.0, len(losses), tails)
    return dataclasses.replace(whole, **change)


def falling(first: np.ndarray) -> np.ndarray:
    """Return losses (problems, DEPTH) that halve with each additional kernel measured."""
    losses: np.ndarray = first[:, None] * 0.5 ** np.arange(DEPTH)
    return losses


def test_the_bound_is_an_order_statistic() -> None:
    c = calibration(falling(np.arange(1, 20) / 100))  # 19 losses: 0.01, 0.02, ..., 0.19
    assert c.bound(0, 1, 0.9) == pytest.approx(0.18)  # the 18th of them, as (19 + 1) * 0.9 = 18
    assert c.bound(0, 2, 0.9) == pytest.approx(0.09)
    assert c.bound(0, 1, 0.95) == pytest.approx(0.19)
    assert c.bound(0, 1, 0.96) == 1.0  # 19 problems cannot tell
    assert c.smallest_k(0, 0.18, 0.9) == 1
    assert c.smallest_k(0, 0.09, 0.9) == 2
    assert c.smallest_k(0, 0.0, 0.9) is None


def test_losses_of_zero_make_a_bound_of_zero() -> None:
    first = np.zeros(99)
    first[:9] = 0.5
    assert calibration(falling(first)).bound(0, 1, 0.9) == 0.0  # the 90th of 99
    first[9] = 0.25
    assert calibration(falling(first)).bound(0, 1, 0.9) == 0.25


@given(n=st.integers(1, 60), zeros=st.floats(0, 1), level=st.floats(0.05, 0.99), seed=st.integers(0, 2**32 - 1))
def test_a_bound_covers_its_own_calibration_as_the_formula_says(n: int, zeros: float, level: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    losses = falling(np.where(rng.random(n) < zeros, 0.0, rng.random(n)))
    c = calibration(losses)
    for k in (1, 4):
        bound = c.bound(0, k, level)
        assert (losses[:, k - 1] <= bound).sum() >= min(np.ceil((n + 1) * level - 1e-9), n)
    bounds = [c.bound(0, k, level) for k in range(1, DEPTH + 1)]
    assert bounds == sorted(bounds, reverse=True)
    assert c.bound(0, 1, level) <= c.bound(0, 1, min(level + 0.05, 0.995))


def test_coverage_of_new_problems_is_the_level() -> None:
    """The average over calibrations is k / (n + 1) exactly, with k = ceil((n + 1) level): here 0.9."""
    rng = np.random.default_rng(0)
    hits = []
    for _ in range(400):
        draws = rng.exponential(0.03, 100)  # 99 to calibrate on
        bound = calibration(falling(draws[:99].clip(max=1))).bound(0, 1, 0.9)
        hits.append(1 - np.exp(-bound / 0.03))  # the true coverage
    assert np.mean(hits) == pytest.approx(0.9, abs=0.006)  # its standard error is 0.0015


def test_far_from_everything_known_is_to_be_measured() -> None:
    c = calibration(np.zeros((50, DEPTH)))
    scores = np.log([100.0, 90.0])
    near, far = GemmProblem(M=1024, N=1024, K=4096), GemmProblem(M=1024, N=1024, K=16384)
    here = c.confidence(near, scores, None)
    assert (here.regret, here.shape_distance, here.k) == ((0.0, 0.0), 2.0, 1)
    there = c.confidence(far, scores, None)
    assert (there.regret, there.shape_distance, there.k) == ((0.0, 1.0), 4.0, None)


def test_risk_chooses_the_bin() -> None:
    weights = np.zeros(N)
    weights[0] = -1.0  # a wide margin is no risk
    safe, risky = calibration(np.zeros((50, DEPTH))), calibration(falling(np.full(50, 0.4)))
    c = dataclasses.replace(
        safe,
        weights=weights,
        edges=np.array([-0.1]),
        counts=np.array([50, 50]),
        losses=[safe.losses[0], risky.losses[0]],
    )
    assert c.confidence(SQUARE, np.log([100.0, 80.0]), None).k == 1
    close = c.confidence(SQUARE, np.log([100.0, 99.0]), None)
    assert close.regret == (0.0, 0.4)
    assert close.k == 5  # 0.4, 0.2, 0.1, 0.05, 0.025
    assert c.confidence(SQUARE, np.log([100.0, 99.0]), None, tolerance=0.1).k == 3


def test_covariates_by_hand() -> None:
    rates = np.log([70.0, 80.0, 60.0])
    seen = covariates_of(SQUARE, np.log([100.0, 95.0, 50.0]), rates, 1.0)
    gap = np.log(100 / 95)
    expected = [gap, *(np.log(1 + np.exp(-gap / w) + np.exp(-np.log(2) / w)) for w in (0.01, 0.03, 0.1))]
    assert seen == pytest.approx([*expected, np.log(2), 31.0, np.log(80 / 70), gap])
    alone = covariates_of(SQUARE, np.log([100.0]), None, 0.0)
    assert alone == pytest.approx([MOST_LOG, 0, 0, 0, 0, 31.0, 0, 0])


def test_a_calibration_survives_a_round_trip() -> None:
    c = calibration(falling(np.ceil(np.linspace(0, 0.3, 30) * PARTS) / PARTS).round(4), weights=np.arange(N) / 8)
    again = Calibration.from_dict(json.loads(json.dumps(c.to_dict())))
    for level in (0.5, 0.9):
        assert again.bound(0, 1, level) == pytest.approx(c.bound(0, 1, level))
    np.testing.assert_array_equal(again.weights, c.weights)
    np.testing.assert_array_equal(again.keys, c.keys)
    assert again.to_dict() == json.loads(json.dumps(again.to_dict()))


@pytest.mark.parametrize(
    "change",
    [
        {"version": 99},
        {"covariates": ["luck"]},
        {"centre": [0.0]},
        {"scale": [0.0] * N},
        {"weights": [float("nan")] * N},
        {"edges": [2.0, 1.0]},
        {"counts": [1]},
        {"losses": []},
        {"losses": [[[100, 200]] * DEPTH]},
        {"losses": [[[-5]] * DEPTH]},
        {"keys": []},
        {"farthest": float("inf")},
    ],
)
def test_damage_is_refused(change: dict[str, Any]) -> None:
    values = calibration(falling(np.linspace(0, 0.3, 30))).to_dict() | change
    with pytest.raises(ArtefactError, match=r"are inconsistent|are defined differently"):
        Calibration.from_dict(values)


def test_levels_and_tolerances_are_shares() -> None:
    c = calibration(np.zeros((50, DEPTH)))
    for level in (0.0, 1.0, 1.5):
        with pytest.raises(ConfigError, match="level must be between 0 and 1"):
            c.confidence(SQUARE, np.zeros(2), None, level=level)
    for tolerance in (-0.1, 1.0):
        with pytest.raises(ConfigError, match=r"tolerance must be in \[0, 1\)"):
            c.confidence(SQUARE, np.zeros(2), None, tolerance=tolerance)

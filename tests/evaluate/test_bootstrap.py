"""Intervals: deterministic, around the difference, narrower by pairing, and right as often as they claim."""

from __future__ import annotations

import numpy as np
import pytest

from tilewise.errors import ConfigError
from tilewise.evaluate import STATISTICS, Interval, paired_bootstrap
from tilewise.evaluate._bootstrap import _of_sorted

RNG = np.random.default_rng(1)
A = 1 - RNG.exponential(0.02, 400).clip(max=0.5)


def test_equal_models_never_differ() -> None:
    for interval in paired_bootstrap(A, A).values():
        assert interval == Interval(0, 0, 0)
        assert interval.verdict == "equal"


def test_a_shift_of_every_problem_is_certain() -> None:
    found = paired_bootstrap(A, A - 0.01)
    assert tuple(found) == tuple(STATISTICS) == ("mean", "median", "p10", "worst")
    for interval in found.values():
        assert (interval.delta, interval.low, interval.high) == pytest.approx((-0.01, -0.01, -0.01))
        assert interval.verdict == "worse"


def test_differences_are_those_of_the_statistics() -> None:
    b = A[::-1].copy()
    b[0] = 0.3
    found = {name: interval.delta for name, interval in paired_bootstrap(A, b).items()}
    expected = (b.mean() - A.mean(), np.median(b) - np.median(A), np.percentile(b, 10) - np.percentile(A, 10))
    assert found == pytest.approx(dict(zip(found, (*expected, 0.3 - A.min()), strict=True)))


@pytest.mark.parametrize("n", [1, 2, 3, 10, 11, 57])
def test_sorted_problems_give_the_same_statistics(n: int) -> None:
    drawn = RNG.random((5, n))
    for name, values in _of_sorted(np.sort(drawn, axis=-1)).items():
        assert values == pytest.approx(STATISTICS[name](drawn), abs=1e-15)


def test_equal_arguments_give_equal_intervals_whatever_is_drawn_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    b = A[::-1]
    whole = paired_bootstrap(A, b, seed=3)
    assert paired_bootstrap(A, b, seed=3) == whole
    assert paired_bootstrap(A, b, seed=4) != whole
    monkeypatch.setattr("tilewise.evaluate._bootstrap._CELLS", 1000)
    assert paired_bootstrap(A, b, seed=3) == whole


def test_the_mean_has_the_interval_that_theory_gives() -> None:
    b = A + RNG.normal(0.001, 0.01, len(A))
    change = b - A
    half = 1.96 * change.std() / len(A) ** 0.5
    mean = paired_bootstrap(A, b)["mean"]
    assert mean.low == pytest.approx(change.mean() - half, abs=0.1 * half)
    assert mean.high == pytest.approx(change.mean() + half, abs=0.1 * half)


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    rng, hits = np.random.default_rng(7), 0
    for seed in range(200):
        change = rng.normal(0.002, 0.02, 80)
        mean = paired_bootstrap(np.full(80, 0.9), 0.9 + change, n_resamples=300, level=0.8, seed=seed)["mean"]
        hits += mean.low <= 0.002 <= mean.high
    assert 0.7 <= hits / 200 <= 0.9


def test_a_higher_level_is_a_wider_interval() -> None:
    narrow, wide = (paired_bootstrap(A, A[::-1], level=level)["mean"] for level in (0.5, 0.99))
    assert wide.low < narrow.low < narrow.high < wide.high


@pytest.mark.parametrize(("level", "ends"), [(0.494, (0.5, 0.5)), (0.506, (0.0, 1.0))])
def test_the_ends_of_an_interval_by_hand(level: float, ends: tuple[float, float]) -> None:
    """Two problems change by 0 and 1: a draw's mean is 0, 0.5 or 1 in a quarter, a half and a quarter of all draws.

    A level of 0.494 leaves 25.3 % at either side, beyond the quarter; 0.506 leaves 24.7 %, within it.
    """
    mean = paired_bootstrap(np.zeros(2), np.array([0.0, 1.0]), level=level, n_resamples=200_000)["mean"]
    assert (mean.delta, mean.low, mean.high) == (0.5, *ends)


def test_the_statistics_by_hand() -> None:
    """Eleven problems: P10 is the second smallest, the median the sixth."""
    b = np.array([0.9, 0.1, 0.2, 0.35, 0.4, 0.55, 0.6, 0.65, 0.8, 0.85, 1.0])
    deltas = {name: interval.delta for name, interval in paired_bootstrap(np.zeros(11), b, n_resamples=2).items()}
    assert deltas == pytest.approx({"mean": 6.4 / 11, "median": 0.6, "p10": 0.2, "worst": 0.1}, rel=1e-12)


def test_the_defaults_are_those_of_the_documentation() -> None:
    assert paired_bootstrap(A, A[::-1]) == paired_bootstrap(A, A[::-1], n_resamples=2000, level=0.95, seed=0)


@pytest.mark.parametrize(
    ("low", "high", "verdict"),
    [(0, 0, "equal"), (1e-9, 1, "better"), (0, 1, "unclear"), (-1, 0, "unclear"), (-1, -1e-9, "worse")],
)
def test_the_verdict_by_hand(low: float, high: float, verdict: str) -> None:
    assert Interval(0.0, low, high).verdict == verdict


@pytest.mark.parametrize(
    ("a", "b", "options", "message"),
    [
        (A, A[:-1], {}, r"on each problem, got \(400,\), \(399,\)"),
        (A[:0], A[:0], {}, r"got \(0,\)"),
        (A, A, {"level": 1.0}, "level between 0 and 1, got 2000 and 1.0"),
        (A, A, {"n_resamples": 0}, "n_resamples must be positive"),
    ],
)
def test_what_cannot_be_compared_is_said(a: np.ndarray, b: np.ndarray, options: dict[str, float], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        paired_bootstrap(a, b, **options)  # type: ignore[arg-type]  # a dict of different options

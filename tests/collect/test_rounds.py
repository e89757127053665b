"""Interleaved timing, with a made-up stopwatch: who is timed when, how often, and what a clock dip does."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tilewise.collect.plan import Timing
from tilewise.collect.results import Samples, percentile, summary
from tilewise.collect.rounds import measure, rotated, rounds_of, unroll_of


class Watch:
    """Candidate i takes `times[i]` ms; notes every round; clocks come from a list, the last one repeating."""

    def __init__(self, times: Sequence[float], clocks: Sequence[int | None] = (1980,)) -> None:
        self._times = times
        self._clocks = clocks
        self.rounds: list[list[int]] = []

    def sample(self, order: Sequence[int]) -> list[float]:
        self.rounds.append(list(order))
        return [self._times[i] for i in order]

    def clock_mhz(self) -> int | None:
        return self._clocks[min(len(self.rounds), len(self._clocks)) - 1]


@pytest.mark.parametrize(
    ("estimate", "fastest", "expected"),
    [
        (0.1, 0.1, 7),  # short: all rounds
        (1.5, 1.0, 4),  # 6 ms budget / 1.5 ms
        (50.0, 40.0, 3),  # never fewer than min_rounds ...
        (0.31, 0.1, 2),  # ... unless hopelessly behind
    ],
)
def test_rounds_are_bounded_by_time_and_a_minimum(estimate: float, fastest: float, expected: int) -> None:
    assert rounds_of(estimate, fastest, Timing()) == expected


@pytest.mark.parametrize(("fastest_ms", "expected"), [(0.001, 16), (0.010, 5), (0.049, 2), (0.05, 1), (2.0, 1)])
def test_short_kernels_are_unrolled_to_fill_the_window(fastest_ms: float, expected: int) -> None:
    assert unroll_of(fastest_ms, Timing()) == expected


def test_the_order_rotates_and_alternates() -> None:
    orders = [rotated(range(6), turn) for turn in range(6)]
    assert all(sorted(o) == list(range(6)) for o in orders)
    assert len({o[0] for o in orders}) >= 3
    assert rotated([], 3) == []


def test_every_candidate_is_timed_each_round_and_the_fastest_again() -> None:
    watch = Watch([0.04, 0.03, 0.02, 0.01, 0.025])
    samples = measure([0.04, 0.03, 0.02, 0.01, 0.025], 1, watch, Timing(finalists=2, final_rounds=8, trailing=10))
    assert [len(s.times) for s in samples] == [7, 7, 15, 15, 7]
    assert [s.times[0] for s in samples] == [0.04, 0.03, 0.02, 0.01, 0.025]
    assert all(sorted(r) == [0, 1, 2, 3, 4] for r in watch.rounds[:7])
    assert all(sorted(r) == [2, 3] for r in watch.rounds[7:])


def test_a_round_with_a_clock_dip_is_repeated() -> None:
    watch = Watch([1.0, 1.0], clocks=[1980, 1500, 1500, 1980])
    samples = measure([1.0, 1.0], 1, watch, Timing(finalists=0))
    assert len(watch.rounds) == 6 + 2
    assert samples[0].clocks == (1980,) * 6


def test_a_clock_that_stays_low_is_accepted_after_the_retries() -> None:
    watch = Watch([1.0, 1.0], clocks=[1980, 1500])
    samples = measure([1.0, 1.0], 1, watch, Timing(rounds=3, finalists=0, max_retries=2))
    assert len(watch.rounds) == 1 + 2 * 3
    assert samples[1].clocks == (1980, 1500, 1500)


def test_an_unknown_clock_rejects_nothing() -> None:
    watch = Watch([1.0], clocks=[None])
    assert measure([1.0], 1, watch, Timing(finalists=0))[0].clocks == ()


def test_summary_gives_the_columns_of_the_table() -> None:
    got = summary(Samples((0.1, 0.4, 0.2, 0.3, 0.5), (1980, 1965), 4))
    assert got == {
        "latency_ms": 0.3,
        "latency_min_ms": 0.1,
        "latency_p20_ms": pytest.approx(0.18),
        "latency_p80_ms": pytest.approx(0.42),
        "repeats": 5,
        "unrolled": 4,
        "sm_clock_mhz": 1972,
    }


def test_percentile_interpolates() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([1.0, 2.0], 25) == 1.25
    assert percentile([5.0], 80) == 5.0

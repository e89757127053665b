"""Interleaved timing with a fake stopwatch: the order, the number of samples, and the effect of a low clock."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewise.collect import Samples, Timing, TimingShare, summarize_samples, time_in_rounds, timing_shares
from tilewise.collect._outcomes import percentile
from tilewise.collect._rounds import rotated
from tilewise.errors import ConfigError


class Watch:
    """Stopwatch whose candidate i takes `times[i]` ms; it lists all rounds and repeats the last of its clocks."""

    def __init__(self, times: Sequence[float], clocks: Sequence[int | None] = (1980,)) -> None:
        self._times = times
        self._clocks = clocks
        self.rounds: list[list[int]] = []

    def sample(self, order: Sequence[int]) -> list[float]:
        self.rounds.append(list(order))
        return [self._times[i] for i in order]

    def clock_mhz(self) -> int | None:
        return self._clocks[min(len(self.rounds), len(self._clocks)) - 1]


def timed(estimates: Sequence[float], watch: Watch, timing: Timing) -> list[Samples]:
    return time_in_rounds(estimates, timing_shares(estimates, [True] * len(estimates), timing), watch, timing)


@pytest.mark.parametrize(
    ("estimate", "expected"),
    [
        (0.1, TimingShare(6, 1)),  # all rounds
        (0.25, TimingShare(2, 1)),  # trailing
        (0.39, TimingShare(2, 1)),
        (0.41, TimingShare(0, 1)),  # hopeless
    ],
)
def test_kernels_that_cannot_win_are_timed_less(estimate: float, expected: TimingShare) -> None:
    assert timing_shares([0.1, estimate], [True, True], Timing())[1] == expected


@pytest.mark.parametrize(("estimate", "rounds"), [(0.05, 6), (0.5, 3), (5.0, 2), (50.0, 1)])
def test_rounds_are_bounded_by_time_and_a_minimum(estimate: float, rounds: int) -> None:
    assert timing_shares([estimate], [True], Timing()) == [TimingShare(rounds, 1)]


@pytest.mark.parametrize(("fastest_ms", "expected"), [(0.001, 16), (0.010, 5), (0.049, 2), (0.05, 1), (2.0, 1)])
def test_short_kernels_are_unrolled_to_fill_the_window(fastest_ms: float, expected: int) -> None:
    assert {s.unrolled for s in timing_shares([fastest_ms, 1.5 * fastest_ms], [True, True], Timing())} == {expected}


def test_a_short_kernel_is_not_dropped_after_its_first_launch() -> None:
    assert timing_shares([0.005, 0.09], [True, True], Timing())[1] == TimingShare(2, 10)


def test_a_kernel_with_an_unreliable_estimate_is_not_dropped() -> None:
    assert timing_shares([0.1, 5.0], [True, False], Timing())[1] == TimingShare(2, 1)


@given(st.lists(st.floats(1e-3, 100), min_size=1, max_size=30))
def test_the_fastest_always_takes_part_in_the_most_rounds(estimates: list[float]) -> None:
    parts = timing_shares(estimates, [True] * len(estimates), Timing())
    best = parts[estimates.index(min(estimates))]
    assert best.rounds == max(p.rounds for p in parts) >= 1


def test_the_order_rotates_and_alternates() -> None:
    orders = [rotated(range(6), iteration) for iteration in range(6)]
    assert all(sorted(o) == list(range(6)) for o in orders)
    assert len({o[0] for o in orders}) >= 3
    assert rotated([], 3) == []


def test_every_candidate_is_timed_each_round_and_the_fastest_again() -> None:
    watch = Watch([0.04, 0.03, 0.02, 0.01, 0.025])
    samples = timed([0.04, 0.03, 0.02, 0.01, 0.025], watch, Timing(finalists=2, trailing=10, hopeless=10))
    assert [len(s.times) for s in samples] == [6, 6, 14, 14, 6]
    assert [s.times[0] for s in samples] == [0.04, 0.03, 0.02, 0.01, 0.025]
    assert all(sorted(r) == [0, 1, 2, 3, 4] for r in watch.rounds[:6])
    assert all(sorted(r) == [2, 3] for r in watch.rounds[6:])


class Disturbed(Watch):
    """Watch whose first round takes candidate 0 five times as long."""

    def sample(self, order: Sequence[int]) -> list[float]:
        first = not self.rounds
        return [5 * t if first and i == 0 else t for i, t in zip(order, super().sample(order), strict=True)]


def test_one_disturbed_sample_keeps_no_candidate_from_the_finals() -> None:
    watch = Disturbed([0.01, 0.011, 0.012, 0.013])
    trailing = [TimingShare(2, 1)] + [TimingShare(6, 1)] * 3  # the estimate was disturbed as well
    samples = time_in_rounds([0.05, 0.011, 0.012, 0.013], trailing, watch, Timing(finalists=2))
    assert summarize_samples(samples[0])["latency_ms"] == 0.01


def test_a_large_pool_has_more_finalists() -> None:
    estimates = [0.05 + 0.0001 * i for i in range(200)]
    watch = Watch(estimates)
    timed(estimates, watch, Timing())
    assert {tuple(sorted(r)) for r in watch.rounds if len(r) < 200} == {tuple(range(12))}


def test_a_round_with_a_clock_dip_is_repeated() -> None:
    watch = Watch([1.0, 1.0], clocks=[1980, 1500, 1500, 1980])
    samples = timed([1.0, 1.0], watch, Timing(min_rounds=6, finalists=0))
    assert len(watch.rounds) == 6 + 2
    assert samples[0].clocks == (1980,) * 6


def test_a_clock_that_stays_low_is_accepted_after_the_retries() -> None:
    watch = Watch([1.0, 1.0], clocks=[1980, 1500])
    samples = timed([1.0, 1.0], watch, Timing(rounds=3, min_rounds=3, finalists=0, max_retries=2))
    assert len(watch.rounds) == 1 + 2 * 3
    assert samples[1].clocks == (1980, 1500, 1500)


def test_a_hopeless_kernel_keeps_the_time_of_its_first_launch() -> None:
    watch = Watch([0.2, 9.0])
    samples = timed([0.25, 5.0], watch, Timing())
    assert samples[1] == Samples((5.0,), (), 1)
    assert all(r == [0] for r in watch.rounds)


def test_an_unknown_clock_rejects_nothing() -> None:
    watch = Watch([1.0], clocks=[None])
    assert timed([1.0], watch, Timing(finalists=0))[0].clocks == ()


def test_summary_gives_the_columns_of_the_table() -> None:
    got = summarize_samples(Samples((0.1, 0.4, 0.2, 0.3, 0.5), (1980, 1965), 4))
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


def test_samples_of_a_warm_up_are_thrown_away() -> None:
    watch = Watch([0.1, 0.2])
    samples = timed([0.1, 0.2], watch, Timing(warmup=3, finalists=0))
    assert [len(s.times) for s in samples] == [6, 6]
    assert len(watch.rounds) == 3 + 6
    assert sorted(watch.rounds[0]) == [0, 1]
    with pytest.raises(ConfigError, match="warmup must not be negative, got -1"):
        Timing(warmup=-1)


@pytest.mark.parametrize("count", [1, 20])
def test_repeats_are_samples_of_every_kernel(count: int) -> None:
    """Kernels that are slow, or hopelessly slow, have as many as the fastest."""
    estimates = [0.001, 0.1, 5.0, 400.0]
    samples = timed(estimates, Watch(estimates), Timing().repeated(count))
    assert [len(s.times) for s in samples] == [count] * 4


def test_repeats_must_be_a_number() -> None:
    with pytest.raises(ConfigError, match="must be a whole number of at least 1, got 0"):
        Timing().repeated(0)

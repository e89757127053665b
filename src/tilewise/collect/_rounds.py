"""Interleaved timing: each round samples every candidate once, in rotating order, so that drift affects all alike.

This module decides the order and the number of samples and needs no GPU; a :class:`Stopwatch` takes the samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tilewise.collect._outcomes import Samples
from tilewise.collect._plan import Timing

_GOLDEN = 0.618  # steps of the golden section spread the starts evenly, for any number of candidates
_LONG_WINDOWS = 2.0  # a launch longer than this many windows counts as long
_VERY_LONG_BUDGETS = 4.0  # a sample longer than this many budgets is taken once


class Stopwatch(Protocol):
    """Clock that takes one round of samples."""

    def sample(self, order: Sequence[int]) -> list[float]:
        """Time each candidate of `order` once, in that order; return milliseconds per launch, shape (len(order),)."""

    def clock_mhz(self) -> int | None:
        """Return the multiprocessors' clock in the last round, or None if it is unknown."""


@dataclass(frozen=True)
class TimingShare:
    """Share of one candidate in the timing.

    Attributes:
        rounds: number of rounds that it takes part in; 0 if its estimate is its only sample.
        unrolled: launches per sample.
    """

    rounds: int
    unrolled: int


def timing_shares(estimates: Sequence[float], reliable: Sequence[bool], timing: Timing) -> list[TimingShare]:
    """Decide how often and how long to time each candidate.

    All candidates have equal unrolling, chosen so that the fastest fills the window: the state of the caches then
    favours none of them. A long candidate that is hopelessly slow keeps its estimate as its only sample.

    Args:
        estimates: rough milliseconds per launch of each candidate, shape (candidates,).
        reliable: whether an estimate is as good as a sample, shape (candidates,).
        timing: the settings.
    """
    fastest = min(estimates, default=0.0)
    unrolled = _unrolled(fastest, timing)

    def share(estimate: float, reliable: bool) -> TimingShare:
        # Short kernels are never dropped by their estimate, which includes the one-time cost of the first launch.
        if reliable and estimate > timing.hopeless * fastest and estimate * 1e3 > _LONG_WINDOWS * timing.window_us:
            return TimingShare(0, 1)
        rounds = _rounds(estimate * unrolled, timing)
        trails = estimate > timing.trailing * fastest
        return TimingShare(min(rounds, timing.trailing_rounds) if trails else rounds, unrolled)

    return [share(*candidate) for candidate in zip(estimates, reliable, strict=True)]


def _rounds(sample_ms: float, timing: Timing) -> int:
    if sample_ms > _VERY_LONG_BUDGETS * timing.budget_ms:
        return 1  # besides its estimate; disturbances are small beside so long a sample
    return max(timing.min_rounds, min(timing.rounds, int(timing.budget_ms / max(sample_ms, 1e-6))))


def _unrolled(launch_ms: float, timing: Timing) -> int:
    wanted = -(-timing.window_us // max(launch_ms * 1e3, 1e-3))
    return int(max(1, min(timing.max_unroll, wanted)))


def rotated(candidates: Sequence[int], iteration: int) -> list[int]:
    """Return the candidates from a start that moves with each iteration; every second iteration is reversed."""
    if not candidates:
        return []
    start = int(iteration * _GOLDEN * len(candidates)) % len(candidates)
    order = [*candidates[start:], *candidates[:start]]
    return order[::-1] if iteration % 2 else order


class _Recorder:
    """Samples of all candidates, taken round by round; repeats rounds in which the clock was low."""

    def __init__(self, candidates: int, watch: Stopwatch, timing: Timing) -> None:
        self.times: list[list[float]] = [[] for _ in range(candidates)]
        self.clocks: list[list[int]] = [[] for _ in range(candidates)]
        self._watch = watch
        self._timing = timing
        self._best_clock = 0
        self._iteration = 0

    def warm_up(self, candidates: Sequence[int]) -> None:
        """Sample each of `candidates` `warmup` times, and keep no sample."""
        for iteration in range(self._timing.warmup):
            self._watch.sample(rotated(candidates, iteration))

    def take_round(self, candidates: Sequence[int]) -> None:
        """Sample each of `candidates` once; after `max_retries` repetitions, accept a round with a low clock too."""
        timing = self._timing
        for attempt in range(timing.max_retries + 1):
            order = rotated(candidates, self._iteration)
            self._iteration += 1
            sampled = self._watch.sample(order)
            clock = self._watch.clock_mhz()
            self._best_clock = max(self._best_clock, clock or 0)
            steady = clock is None or clock >= timing.clock_ratio * self._best_clock
            if steady or attempt == timing.max_retries:
                break
        for i, ms in zip(order, sampled, strict=True):
            self.times[i].append(ms)
            if clock is not None:
                self.clocks[i].append(clock)


def time_in_rounds(
    estimates: Sequence[float], shares: Sequence[TimingShare], watch: Stopwatch, timing: Timing
) -> list[Samples]:
    """Time all candidates in rounds, then the fastest few again.

    Args:
        estimates: milliseconds of one cold launch of each candidate, shape (candidates,): the only sample of those
            that take part in no round.
        shares: :func:`timing_shares` of the estimates.
        watch: takes the samples.
        timing: the settings.

    Returns:
        The samples of each candidate, in the order of `estimates`.
    """
    recorder = _Recorder(len(estimates), watch, timing)
    recorder.warm_up([i for i, share in enumerate(shares) if share.rounds])
    for r in range(max((share.rounds for share in shares), default=0)):
        recorder.take_round([i for i, share in enumerate(shares) if r < share.rounds])
    finalists = _finalists(recorder.times, timing)
    if len(finalists) > 1:
        slowest = max(estimates[i] * shares[i].unrolled for i in finalists)
        for _ in range(min(timing.final_rounds, 2 * _rounds(slowest, timing))):
            recorder.take_round(finalists)
    return [
        Samples(tuple(times), tuple(clocks), share.unrolled) if times else Samples((estimate,), (), 1)
        for times, clocks, share, estimate in zip(recorder.times, recorder.clocks, shares, estimates, strict=True)
    ]


def _finalists(times: Sequence[Sequence[float]], timing: Timing) -> list[int]:
    """Return the fastest candidates by their best sample: a disturbance only slows a sample, and some have just two."""
    timed = [i for i, samples in enumerate(times) if samples]
    places = max(timing.finalists, round(timing.final_share * len(timed))) if timing.finalists else 0
    return sorted(sorted(timed, key=lambda i: min(times[i]))[:places])

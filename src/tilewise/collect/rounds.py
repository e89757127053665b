"""Interleaved timing: every candidate once a round, the order rotated, so that drift hits all alike.

The clockwork is here, without a GPU; what takes one sample is handed in (:class:`Stopwatch`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from tilewise.collect.plan import Timing
from tilewise.collect.results import Samples

_GOLDEN = 0.618  # steps of the golden section spread the starts evenly, however many there are
_LONG = 2.0  # windows
_VERY_LONG = 4.0  # budgets


class Stopwatch(Protocol):
    """Takes one round of samples."""

    def sample(self, order: Sequence[int]) -> list[float]:
        """Time each candidate of `order` once, in that order; milliseconds a launch."""

    def clock_mhz(self) -> int | None:
        """The multiprocessors' clock during the last round, or None where nobody knows."""


@dataclass(frozen=True)
class Share:
    """What one candidate takes part in: so many rounds, with `unrolled` launches a sample."""

    rounds: int
    unrolled: int


def shares(estimates: Sequence[float], sure: Sequence[bool], timing: Timing) -> list[Share]:
    """How often and how long each candidate is timed.

    All that may still be the fastest are unrolled alike, so that the fastest of them fills the window: how warm a
    cache is then favours nobody. A long one that is hopelessly behind has been timed well enough by its estimate.

    Args:
        estimates: rough milliseconds a launch of each candidate, shape (candidates,).
        sure: whether an estimate is as good as a sample, shape (candidates,).
        timing: the settings.
    """
    fastest = min(estimates, default=0.0)
    unrolled = _unrolled(fastest, timing)

    def share(estimate: float, sure: bool) -> Share:
        # the estimate of a short kernel is too rough to give it up: it includes what only a first launch costs
        if sure and estimate > timing.hopeless * fastest and estimate * 1e3 > _LONG * timing.window_us:
            return Share(0, 1)
        rounds = _rounds(estimate * unrolled, timing)
        trails = estimate > timing.trailing * fastest
        return Share(min(rounds, timing.trailing_rounds) if trails else rounds, unrolled)

    return [share(*known) for known in zip(estimates, sure, strict=True)]


def _rounds(sample_ms: float, timing: Timing) -> int:
    if sample_ms > _VERY_LONG * timing.budget_ms:
        return 1  # besides its estimate; what disturbs a sample is little beside it
    return max(timing.min_rounds, min(timing.rounds, int(timing.budget_ms / max(sample_ms, 1e-6))))


def _unrolled(launch_ms: float, timing: Timing) -> int:
    wanted = -(-timing.window_us // max(launch_ms * 1e3, 1e-3))
    return int(max(1, min(timing.max_unroll, wanted)))


def rotated(candidates: Sequence[int], turn: int) -> list[int]:
    """The candidates, starting elsewhere each turn and backwards every second one."""
    if not candidates:
        return []
    start = int(turn * _GOLDEN * len(candidates)) % len(candidates)
    order = [*candidates[start:], *candidates[:start]]
    return order[::-1] if turn % 2 else order


def measure(estimates: Sequence[float], parts: Sequence[Share], watch: Stopwatch, timing: Timing) -> list[Samples]:
    """Time all candidates in rounds, then the fastest few again.

    Args:
        estimates: milliseconds of one cold launch of each candidate, shape (candidates,): the only sample of those
            that take part in no round.
        parts: :func:`shares` of the estimates.
        watch: takes the samples.
        timing: the settings.

    Returns:
        The samples of each candidate, in the order of `estimates`.
    """
    times: list[list[float]] = [[] for _ in estimates]
    clocks: list[list[int]] = [[] for _ in estimates]
    best_clock = 0
    turn = 0

    def one_round(candidates: Sequence[int]) -> None:
        nonlocal best_clock, turn
        for attempt in range(timing.max_retries + 1):
            order = rotated(candidates, turn)
            turn += 1
            sampled = watch.sample(order)
            clock = watch.clock_mhz()
            best_clock = max(best_clock, clock or 0)
            steady = clock is None or clock >= timing.clock_ratio * best_clock
            if steady or attempt == timing.max_retries:
                break
        for i, ms in zip(order, sampled, strict=True):
            times[i].append(ms)
            if clock is not None:
                clocks[i].append(clock)

    for r in range(max((part.rounds for part in parts), default=0)):
        one_round([i for i, part in enumerate(parts) if r < part.rounds])
    timed = [i for i, t in enumerate(times) if t]
    places = max(timing.finalists, round(timing.final_share * len(timed))) if timing.finalists else 0
    # by the best sample: what disturbs one only makes it slower, and may have hit one of the two that a candidate has
    finalists = sorted(sorted(timed, key=lambda i: min(times[i]))[:places])
    if len(finalists) > 1:
        slowest = max(estimates[i] * parts[i].unrolled for i in finalists)
        for _ in range(min(timing.final_rounds, 2 * _rounds(slowest, timing))):
            one_round(finalists)
    return [
        Samples(tuple(t), tuple(c), part.unrolled) if t else Samples((estimate,), (), 1)
        for t, c, part, estimate in zip(times, clocks, parts, estimates, strict=True)
    ]

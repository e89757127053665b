"""Interleaved timing: every candidate once a round, the order rotated, so that drift hits all alike.

The clockwork is here, without a GPU; what takes one sample is handed in (:class:`Stopwatch`).
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Protocol

from tilewise.collect.plan import Timing
from tilewise.collect.results import Samples

_GOLDEN = 0.618  # steps of the golden section spread the starts evenly, however many there are


class Stopwatch(Protocol):
    """Takes one round of samples."""

    def sample(self, order: Sequence[int]) -> list[float]:
        """Time each candidate of `order` once, in that order; milliseconds a launch."""

    def clock_mhz(self) -> int | None:
        """The multiprocessors' clock during the last round, or None where nobody knows."""


def rounds_of(estimate_ms: float, fastest_ms: float, timing: Timing) -> int:
    """How many rounds a kernel takes part in, by its estimated time a sample and that of the fastest."""
    if estimate_ms > timing.trailing * fastest_ms:
        return timing.trailing_rounds
    return max(timing.min_rounds, min(timing.rounds, int(timing.budget_ms / max(estimate_ms, 1e-6))))


def unroll_of(fastest_ms: float, timing: Timing) -> int:
    """Launches a sample, the same for all candidates of a problem, so that the fastest fills the window."""
    wanted = -(-timing.window_us // max(fastest_ms * 1e3, 1e-3))
    return int(max(1, min(timing.max_unroll, wanted)))


def rotated(candidates: Sequence[int], turn: int) -> list[int]:
    """The candidates, starting elsewhere each turn and backwards every second one."""
    if not candidates:
        return []
    start = int(turn * _GOLDEN * len(candidates)) % len(candidates)
    order = [*candidates[start:], *candidates[:start]]
    return order[::-1] if turn % 2 else order


def measure(estimates: Sequence[float], unrolled: int, watch: Stopwatch, timing: Timing) -> list[Samples]:
    """Time all candidates in rounds, then the fastest few again.

    Args:
        estimates: rough milliseconds a launch of each candidate, shape (candidates,).
        unrolled: launches a sample.
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

    fastest = min(estimates, default=0.0) * unrolled
    wanted = [rounds_of(e * unrolled, fastest, timing) for e in estimates]
    for r in range(max(wanted, default=0)):
        one_round([i for i, n in enumerate(wanted) if r < n])
    ranked = sorted(range(len(times)), key=lambda i: statistics.median(times[i]))
    finalists = sorted(ranked[: timing.finalists])
    if len(finalists) > 1:
        slowest = max(estimates[i] for i in finalists) * unrolled
        for _ in range(min(timing.final_rounds, 2 * rounds_of(slowest, slowest, timing))):
            one_round(finalists)
    return [Samples(tuple(t), tuple(c), unrolled) for t, c in zip(times, clocks, strict=True)]

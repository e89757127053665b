"""Stopwatches for calls in this process: on a CPU, and on a GPU without a captured graph.

Both take samples for :func:`tilewise.collect.time_in_rounds`; calls that fit into a CUDA graph are timed by
:class:`tilewise.collect.engines.GraphStopwatch`. torch is imported by the GPU's stopwatch only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from time import perf_counter
from typing import Protocol

from tilewise.autotuning._call_forms import Argument


class Work(Protocol):
    """A call to time, with actions before and after it that are not timed."""

    def before(self) -> None:
        """Prepare a sample."""

    def launch(self) -> None:
        """Run the call once."""

    def after(self) -> None:
        """Clean up after a sample."""


@dataclass(frozen=True)
class CpuStopwatch:
    """Clock of the host, for calls that have finished when they return.

    Attributes:
        works: (call, calls per sample) by candidate.
    """

    works: Sequence[tuple[Work, int]]

    def sample(self, order: Sequence[int]) -> list[float]:
        """Time each candidate of `order` once, in that order; return milliseconds per call, shape (len(order),)."""
        return [host_ms(*self.works[i]) for i in order]

    def clock_mhz(self) -> None:
        """Return None: the host's clock is unknown."""


class EventStopwatch:
    """Events around calls that queue work on the current stream, with a cold L2 cache.

    Args:
        works: (call, calls per sample) by candidate.
    """

    def __init__(self, works: Sequence[tuple[Work, int]]) -> None:
        from tilewise.collect.engines import L2Cache

        self._works, self._cache = works, L2Cache()

    def sample(self, order: Sequence[int]) -> list[float]:
        """Time each candidate of `order` once, in that order; return milliseconds per call, shape (len(order),)."""
        import torch

        from tilewise.collect.engines import HEAD_START_CLEARS

        pairs: list[tuple[Argument, Argument]] = []
        for _ in range(HEAD_START_CLEARS):
            self._cache.clear()
        for i in order:
            work, times = self._works[i]
            pair = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            work.before()
            self._cache.clear()
            self._cache.clear()  # twice, which gives the host time to queue the calls
            pair[0].record()
            for _ in range(times):
                work.launch()
            pair[1].record()
            work.after()
            pairs.append(pair)
        torch.cuda.synchronize()
        return [start.elapsed_time(end) / self._works[i][1] for i, (start, end) in zip(order, pairs, strict=True)]

    def clock_mhz(self) -> None:
        """Return None: the clock is not read."""


def host_ms(work: Work, times: int) -> float:
    """Return the host's milliseconds per call of one sample."""
    work.before()
    start = perf_counter()
    for _ in range(times):
        work.launch()
    elapsed = perf_counter() - start
    work.after()
    return max(elapsed * 1e3 / times, 1e-6)  # a clock may stand still during a short call

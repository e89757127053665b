"""Timing of work on a CUDA device: captured graphs between events, with a cold L2 cache.

Before each sample, other data fills the L2 cache (twice its size, outside the timed window). A sample is one replay,
between two events, of a CUDA graph that holds one or more launches of the same work. So work longer than the window is
timed cold, as it runs between the other layers of a network; shorter work is mostly warm, but free of launch gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from tilewise.collect.engines._nvml import sm_clock_mhz

HEAD_START_CLEARS = 4  # cache clearings before the first sample, so that the device never waits for the host


@dataclass(frozen=True)
class Repeated:
    """Captured graph that holds `unrolled` launches of the same work."""

    graph: torch.cuda.CUDAGraph
    unrolled: int


def capture_graph(work: Callable[[], object], unrolled: int) -> Repeated:
    """Capture `unrolled` calls of `work` on the current stream, which must not be the default one.

    A graph of several calls is replayed once, as its first replay takes longer; that matters beside short calls only.

    Args:
        work: queues work on the current stream; it must not synchronise.
        unrolled: number of calls.
    """
    # torch.cuda.graph() collects garbage and empties the cache at each capture, which takes tens of milliseconds. The
    # bare calls suffice for work that allocates nothing.
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    for _ in range(unrolled):
        work()
    graph.capture_end()
    if unrolled > 1:
        graph.replay()
    return Repeated(graph, unrolled)


class L2Cache:
    """L2 cache of the current device.

    Clearing reads other data, because lines that were only read need no write-back while a kernel is timed.
    """

    def __init__(self) -> None:
        size = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        self._filler = torch.zeros(2 * size // 4, device="cuda")
        self._sum = torch.empty((), device="cuda")

    def clear(self) -> None:
        """Queue a read that evicts all other data."""
        torch.sum(self._filler, dim=0, out=self._sum)


class GraphStopwatch:
    """Stopwatch over captured work, see :class:`tilewise.collect._rounds.Stopwatch`.

    Args:
        work: the captured graph of each candidate.
        cache: cleared before each sample.
        uuid: the GPU's id, for reading its clock.
    """

    def __init__(self, work: Mapping[int, Repeated], cache: L2Cache, uuid: str) -> None:
        self._work = work
        self._cache = cache
        self._uuid = uuid
        self._clock: int | None = None
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def sample(self, order: Sequence[int]) -> list[float]:
        """Time each candidate of `order` once, in that order; return milliseconds per launch, shape (len(order),)."""
        while len(self._events) < len(order):
            self._events.append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
        stream = torch.cuda.current_stream()
        for _ in range(HEAD_START_CLEARS):
            self._cache.clear()
        for i, (start, end) in zip(order, self._events, strict=False):
            self._cache.clear()
            start.record(stream)
            self._work[i].graph.replay()
            end.record(stream)
        self._clock = sm_clock_mhz(self._uuid)  # read while the queue still runs: the clock under load
        torch.cuda.synchronize()
        return [
            start.elapsed_time(end) / self._work[i].unrolled
            for i, (start, end) in zip(order, self._events, strict=False)
        ]

    def clock_mhz(self) -> int | None:
        """Return the multiprocessors' clock in the last round, or None if it is unknown."""
        return self._clock

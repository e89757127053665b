"""Timing work on a CUDA device: graphs between events, with a cold L2 cache.

Regime: before each sample other data fills the L2 cache (twice its size, outside the timed window); a sample is one
replay of a CUDA graph that holds some launches of the same work, between two events. So work longer than the window is
timed cold, as it runs between the other layers of a network, and shorter work mostly warm but free of launch gaps.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from tilewise.collect import nvml

HEAD_START = 4  # clearings before the first sample, so that the device never waits for the host


@dataclass(frozen=True)
class Repeated:
    """A captured graph that holds `unrolled` launches of the same work."""

    graph: torch.cuda.CUDAGraph
    unrolled: int


def capture(work: Callable[[], object], unrolled: int) -> Repeated:
    """Capture `unrolled` calls of `work`, which must not synchronise, on the current stream (not the default one).

    A graph of several calls is replayed once: its first replay takes longer, which matters only beside short ones.
    """
    # torch.cuda.graph() collects garbage and empties the cache at each capture: tens of milliseconds. The bare calls
    # are enough for work that allocates nothing.
    graph = torch.cuda.CUDAGraph()
    graph.capture_begin()
    for _ in range(unrolled):
        work()
    graph.capture_end()
    if unrolled > 1:
        graph.replay()
    return Repeated(graph, unrolled)


class Cache:
    """The L2 cache of the current device.

    Cleared by reading: lines that were only read need no writing back while a kernel is timed.
    """

    def __init__(self) -> None:
        size = torch.cuda.get_device_properties(torch.cuda.current_device()).L2_cache_size
        self._filler = torch.zeros(2 * size // 4, device="cuda")
        self._sum = torch.empty((), device="cuda")

    def clear(self) -> None:
        """Evict everything."""
        torch.sum(self._filler, dim=0, out=self._sum)


class GraphStopwatch:
    """A :class:`tilewise.collect.rounds.Stopwatch` over captured work, by candidate."""

    def __init__(self, work: Mapping[int, Repeated], cache: Cache, uuid: str) -> None:
        self._work = work
        self._cache = cache
        self._uuid = uuid
        self._clock: int | None = None
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def sample(self, order: Sequence[int]) -> list[float]:
        """Time each candidate of `order` once, in that order; milliseconds a launch."""
        while len(self._events) < len(order):
            self._events.append((torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)))
        stream = torch.cuda.current_stream()
        for _ in range(HEAD_START):
            self._cache.clear()
        for i, (start, end) in zip(order, self._events, strict=False):
            self._cache.clear()
            start.record(stream)
            self._work[i].graph.replay()
            end.record(stream)
        self._clock = nvml.sm_clock_mhz(self._uuid)  # the queue is still running: this is the clock under load
        torch.cuda.synchronize()
        return [
            start.elapsed_time(end) / self._work[i].unrolled
            for i, (start, end) in zip(order, self._events, strict=False)
        ]

    def clock_mhz(self) -> int | None:
        """The multiprocessors' clock during the last round."""
        return self._clock

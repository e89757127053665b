"""Timing of two kernels behind a call on a CUDA device: on its stream and its operands, without waiting.

The module imports torch, so it is imported after something ran. The method is that of :mod:`tilewise.collect.engines`,
but without graphs, as capturing one would disturb an application. The L2 cache is cleared before each sample, outside
of the timed interval. The clearings before the first sample keep the device busy while the host queues the rest. A
sample that the device reached before the host had queued it is dropped, and a slow host gets more clearings the next
time. Results go to separate memory; a later call reads the events.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilewise.collect.engines import HEAD_START_CLEARS, L2Cache
from tilewise.dispatch.launching import BoundKernel, TorchLauncher
from tilewise.dispatch.measuring import is_capturing
from tilewise.dispatch.shadowing._pair import Case, Pair, PairTimes, expected_ms
from tilewise.dispatch.shadowing._timers import PendingTimes
from tilewise.errors import KernelError
from tilewise.kernels.triton import Kernel
from tilewise.kernels.triton.programs import compile_program, cuda_target, family_of, interpreted

ROUNDS = 3
_CLEARING_MS = 0.04  # to read an H200's L2 cache twice, and for the host to queue that
_MAX_CLEARINGS = 64  # before the first sample
_FREE_FACTOR = 4  # this many times the needed memory must be free

Launches = tuple[BoundKernel, BoundKernel]  # of production and the candidate


class GpuTimer:
    """A timer on the GPU; see :class:`tilewise.dispatch.shadowing._timers.Timer`."""

    offline = False

    def __init__(self) -> None:
        self.device = ""
        self._head_start = HEAD_START_CLEARS

    def prepare(self, pair: Pair, case: Case) -> None:
        """Compile the candidate's kernel, unless it is compiled; nothing is loaded, and the GPU is not touched."""
        assert case.candidate is not None
        if not interpreted():
            target = pair.production.target
            programs = family_of(target.op, target.variant).programs(case.candidate.kernel, case.problem, target.dtype)
            for program in programs:
                compile_program(program, cuda_target(target.arch))

    def cost_ms(self, pair: Pair, case: Case) -> float:
        """Return the time of one untimed and :data:`ROUNDS` timed launches per kernel, and of the clearings."""
        assert case.candidate is not None
        clearing = (self._head_start + 2 * ROUNDS) * _CLEARING_MS
        return (1 + ROUNDS) * (case.call_ms + expected_ms(case.problem, case.candidate)) + clearing

    def start(
        self, pair: Pair, case: Case, tensors: Sequence[torch.Tensor], out: torch.Tensor | None
    ) -> PendingTimes | None:
        """See :meth:`tilewise.dispatch.shadowing._timers.Timer.start`."""
        if out is None or interpreted() or is_capturing():
            return None
        launches = self._launches(pair, case, out.get_device())
        if launches is None:
            return None
        with torch.cuda.device(out.device):
            self.device = torch.cuda.get_device_name()
            # A failing allocation would make torch release all cached memory and wait for the device, so ask before.
            if _FREE_FACTOR * self._needed_bytes(pair, case, out) > torch.cuda.mem_get_info()[0]:
                return None
            head_start = self._head_start
            pending = queue_samples(launches, tensors, torch.empty_like(out), case.observed, head_start)

        def times() -> PairTimes | None:
            result = pending()
            if result is not None and len(result.production) < ROUNDS:
                self._head_start = min(2 * head_start, _MAX_CLEARINGS)
            return result

        return times

    def _needed_bytes(self, pair: Pair, case: Case, out: torch.Tensor) -> int:
        """Return the memory for the cache's filler, the result and the larger workspace."""
        elements = family_of(pair.production.target.op, pair.production.target.variant).workspace_elements
        kernels = [s.kernel for s in (case.production, case.candidate) if s is not None]
        workspace = max((elements(k, case.problem) for k in kernels if isinstance(k, Kernel)), default=0)
        filler = 2 * torch.cuda.get_device_properties(out.device).L2_cache_size
        return int(filler + out.numel() * out.element_size() + 4 * workspace)

    def _launches(self, pair: Pair, case: Case, device: int) -> Launches | None:
        """Return the launches of both kernels, or None if production's was not launched yet.

        Raises:
            KernelError: production's kernel could not be launched, and another one was.
            Exception: the candidate's kernel cannot be loaded.
        """
        launcher = pair.production.launcher
        if not isinstance(launcher, TorchLauncher) or case.candidate is None:
            return None
        launched = launcher.launched(case.problem, device)
        if launched is None:
            return None
        name, production = launched
        if name != case.production.kernel_name:
            raise KernelError(f"production's {case.production.kernel_name} could not be launched, {name} was")
        candidate = case.bound.get(device)
        if candidate is None:
            candidate = case.bound[device] = launcher.bind(case.candidate.kernel, case.problem, device)
        return production, candidate


def queue_samples(
    launches: Launches, tensors: Sequence[torch.Tensor], scratch: torch.Tensor, iteration: int, head_start: int
) -> PendingTimes:
    """Queue all samples on the current stream.

    Args:
        launches: of production's and the candidate's kernel.
        tensors: operands, which are only read.
        scratch: tensor for the results.
        iteration: number of earlier observations; its parity decides which kernel comes first.
        head_start: number of clearings before the first sample.

    Returns:
        A function that returns the times of the reliable rounds once the device is done.
    """
    begin, end = _event(), _event()
    samples: list[tuple[int, torch.cuda.Event, torch.cuda.Event, bool]] = []
    begin.record()
    cache = L2Cache()  # torch caches its memory between observations
    for _ in range(head_start):
        cache.clear()
    for launch in launches:  # untimed, as a first launch may cost more
        launch(tensors, scratch)
    for number in range(ROUNDS):
        for side in (0, 1) if (iteration + number) % 2 == 0 else (1, 0):
            start, stop = _event(), _event()
            cache.clear()
            start.record()
            launches[side](tensors, scratch)
            stop.record()
            samples.append((side, start, stop, start.query()))
    end.record()

    def times() -> PairTimes | None:
        if not end.query():
            return None
        by_side: tuple[list[float], list[float]] = ([], [])
        for first, second in zip(samples[::2], samples[1::2], strict=True):
            if not first[-1] and not second[-1]:  # the device had not reached them when they were queued
                for side, start, stop, _ in (first, second):
                    by_side[side].append(start.elapsed_time(stop))
        return PairTimes(tuple(by_side[0]), tuple(by_side[1]), begin.elapsed_time(end))

    return times


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)

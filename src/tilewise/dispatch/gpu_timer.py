"""Timing two kernels beside a call on a CUDA device: on its stream, on its operands, waiting for nothing.

Imports torch, so it is imported once something ran. The regime is that of :mod:`tilewise.collect.stopwatch`, without
graphs, as capturing one would disturb an application: the L2 cache is cleared before each sample, outside of it, and
the clearings before the first one keep the device busy while the host queues what follows. A sample that the device
reached before the host had queued it is dropped, and a host that is too slow gets a longer start the next time.
Results go to memory of their own; a later call reads the events.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tilewise.collect.stopwatch import HEAD_START, Cache
from tilewise.dispatch.bind import Bound
from tilewise.dispatch.launch import Launcher
from tilewise.dispatch.measure import capturing
from tilewise.dispatch.pair import Case, Pair, Times, milliseconds
from tilewise.dispatch.timers import Running
from tilewise.errors import KernelError
from tilewise.kernels.triton.family import family_of
from tilewise.kernels.triton.program import compile_program, cuda_target, interpreted

ROUNDS = 3
_CLEARING_MS = 0.04  # reading twice an H200's L2 cache, and what the host takes to queue it
_MOST_CLEARINGS = 64  # before the first sample
_SPARE = 4  # times the memory that is needed must be free

Launches = tuple[Bound, Bound]


class GpuTimer:
    """See :class:`tilewise.dispatch.timers.Timer`."""

    offline = False

    def __init__(self) -> None:
        self.device = ""
        self._head_start = HEAD_START

    def prepare(self, pair: Pair, case: Case) -> None:
        """Compile the candidate's kernel, unless that was done once; nothing is loaded, the GPU is not touched."""
        assert case.rival is not None
        if not interpreted():
            target = pair.production.target
            programs = family_of(target.op, target.variant).programs(case.rival.kernel, case.problem, target.dtype)
            for program in programs:
                compile_program(program, cuda_target(target.arch))

    def cost_ms(self, pair: Pair, case: Case) -> float:
        """Each kernel once untimed and :data:`ROUNDS` times timed, and the clearings."""
        assert case.rival is not None
        clearing = (self._head_start + 2 * ROUNDS) * _CLEARING_MS
        return (1 + ROUNDS) * (case.ms + milliseconds(case.problem, case.rival)) + clearing

    def start(
        self, pair: Pair, case: Case, tensors: Sequence[torch.Tensor], out: torch.Tensor | None
    ) -> Running | None:
        """See :class:`tilewise.dispatch.timers.Timer`."""
        if out is None or interpreted() or capturing():
            return None
        launches = self._launches(pair, case, out.get_device())
        if launches is None:
            return None
        with torch.cuda.device(out.device):
            self.device = torch.cuda.get_device_name()
            elements = family_of(pair.production.target.op, pair.production.target.variant).workspace_elements
            workspace = max(elements(s.kernel, case.problem) for s in (case.selection, case.rival) if s is not None)
            filler = 2 * torch.cuda.get_device_properties(out.device).L2_cache_size
            needed = filler + out.numel() * out.element_size() + 4 * workspace
            # asking first: an allocation that fails makes torch give back all that it keeps, and wait for the device
            if _SPARE * needed > torch.cuda.mem_get_info()[0]:
                return None
            head_start = self._head_start
            running = queue(launches, tensors, torch.empty_like(out), case.observed, head_start)

        def times() -> Times | None:
            found = running()
            if found is not None and len(found.production) < ROUNDS:
                self._head_start = min(2 * head_start, _MOST_CLEARINGS)
            return found

        return times

    def _launches(self, pair: Pair, case: Case, device: int) -> Launches | None:
        """What launches the picks; None where production's was not launched yet.

        Raises:
            KernelError: production's pick could not be launched, so another was.
            Exception: the candidate's cannot be loaded.
        """
        launcher = pair.production.launcher
        if not isinstance(launcher, Launcher) or case.rival is None:
            return None
        launched = launcher.launched(case.problem, device)
        if launched is None:
            return None
        name, ours = launched
        if name != case.selection.kernel_name:
            raise KernelError(f"production's {case.selection.kernel_name} could not be launched, {name} was")
        theirs = case.bound.get(device)
        if theirs is None:
            theirs = case.bound[device] = launcher.binding(case.rival.kernel, case.problem, device)
        return ours, theirs


def queue(
    launches: Launches, tensors: Sequence[torch.Tensor], scratch: torch.Tensor, turn: int, head_start: int
) -> Running:
    """Queue all samples on the current stream.

    Args:
        launches: of production's and the candidate's kernel.
        tensors: operands, which are only read.
        scratch: where the results go.
        turn: which kernel begins, by turns.
        head_start: clearings before the first sample.

    Returns:
        What tells the rounds that can be relied upon, once the device is done.
    """
    begin, end = _event(), _event()
    samples: list[tuple[int, torch.cuda.Event, torch.cuda.Event, bool]] = []
    begin.record()
    cache = Cache()  # torch keeps its memory for the next time; nobody else has to
    for _ in range(head_start):
        cache.clear()
    for launch in launches:  # whatever only a first launch costs
        launch(tensors, scratch)
    for number in range(ROUNDS):
        for side in (0, 1) if (turn + number) % 2 == 0 else (1, 0):
            start, stop = _event(), _event()
            cache.clear()
            start.record()
            launches[side](tensors, scratch)
            stop.record()
            samples.append((side, start, stop, start.query()))
    end.record()

    def times() -> Times | None:
        if not end.query():
            return None
        kept: tuple[list[float], list[float]] = ([], [])
        for first, second in zip(samples[::2], samples[1::2], strict=True):
            if not first[-1] and not second[-1]:  # the device had not reached them when they were queued
                for side, start, stop, _ in (first, second):
                    kept[side].append(start.elapsed_time(stop))
        return Times(tuple(kept[0]), tuple(kept[1]), begin.elapsed_time(end))

    return times


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)

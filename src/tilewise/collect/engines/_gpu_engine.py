"""Engine that measures Triton kernels and the vendor's calls on a CUDA device; ``_stopwatch.py`` explains the timing.

A problem is measured in one sweep: all kernels are launched, checked and timed once without waiting for any of them,
then timed in rounds. Waiting for each kernel would take longer than most kernels do. A sweep cannot tell which kernel
broke or hung the device; a careful sweep, which waits after each kernel, can.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
import triton

from tilewise.collect._outcomes import Outcome
from tilewise.collect._plan import Item, Plan
from tilewise.collect._rounds import time_in_rounds, timing_shares
from tilewise.collect.engines._engine import REGIME, BeginCallback, Device, EngineLostError
from tilewise.collect.engines._nvml import driver_version
from tilewise.collect.engines._stopwatch import HEAD_START_CLEARS, GraphStopwatch, L2Cache, capture_graph
from tilewise.errors import one_line
from tilewise.kernels import PROGRAM_VERSIONS
from tilewise.kernels.triton import Kernel
from tilewise.kernels.triton.programs import (
    Program,
    compile_program,
    count_mismatches,
    empty_result,
    family_of,
    launch_all,
    random_operands,
    scale_of,
    seed_of,
)
from tilewise.kernels.vendor import VendorCall, bind_call
from tilewise.ops import Problem

Work = Callable[[], torch.Tensor | None]  # runs a kernel; returns its result unless that is in the result's tensor

_LEADERS = 3  # of the kernels with unreliable times, this many of the fastest are timed once more
_COUNTER_STRIDE = 4  # counters lie 16 bytes apart: equal alignment needs one compilation of the check only


@dataclass
class _Tensors:
    """Tensors of a problem, with the relative tolerance of its result."""

    operands: tuple[torch.Tensor, ...]
    result: torch.Tensor
    rtol: float


@dataclass(frozen=True)
class _Reference:
    """Right result of a problem, with the scale of its values."""

    values: torch.Tensor
    scale: float


@dataclass(frozen=True)
class _TimedRun:
    """Cold run of a kernel whose result was right.

    Attributes:
        work: of the kernel.
        ms: its time.
        reliable: whether no pause of the host lies within the time.
    """

    work: Work
    ms: float
    reliable: bool


@dataclass(frozen=True)
class _Sweep:
    """State of a sweep, by kernel index.

    Attributes:
        work: of each kernel that could be prepared.
        queued_ms: host time, since the start of the sweep, at which each kernel was queued.
        failed: outcomes of kernels that failed.
    """

    work: dict[int, Work] = field(default_factory=dict)
    queued_ms: dict[int, float] = field(default_factory=dict)
    failed: dict[int, Outcome] = field(default_factory=dict)

    def ran(self) -> list[int]:
        """Return the kernels that were queued and have not failed."""
        return [i for i in self.queued_ms if i not in self.failed]


class GpuEngine:
    """Engine for the kernels of the plan's target; an instance owns one device of this process.

    Args:
        plan: the plan to measure.
        index: of the device.
    """

    def __init__(self, plan: Plan, index: int) -> None:
        torch.cuda.set_device(index)
        # References are computed in fp32. TF32 holds every 16-bit and 8-bit operand exactly, and sums in fp32 as well.
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cuda.matmul.allow_tf32 = True
        self._plan = plan
        self._family = family_of(plan.target.op, plan.target.variant)
        self._dtype = plan.target.dtype
        properties = torch.cuda.get_device_properties(index)
        self._uuid = f"GPU-{properties.uuid}"
        self._name = properties.name
        self._cache = L2Cache()
        self._workspace = torch.empty(0, device="cuda")
        self._wrong = torch.zeros((len(plan.pool), _COUNTER_STRIDE), dtype=torch.int32, device="cuda")
        self._wrong_of = self._wrong.unbind()
        self._events = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in plan.pool.kernels
        ]
        self._start = torch.cuda.Event(enable_timing=True)
        self._loaded: set[Program] = set()
        self._stream = torch.cuda.Stream()
        torch.cuda.set_stream(self._stream)
        self._warm_up()

    def device(self) -> Device:
        """Describe the device."""
        libraries = f"torch {torch.__version__}, triton {triton.__version__}, CUDA {torch.version.cuda}"
        version = PROGRAM_VERSIONS.get(self._plan.target.op)
        return Device(self._name, self._uuid, driver_version(), libraries, REGIME, version)

    def measure(
        self, item: Item, known: Mapping[int, Outcome], begin: BeginCallback, careful: bool = False
    ) -> list[Outcome]:
        """Measure one problem, see :class:`tilewise.collect.engines.Engine`."""
        problem, kernels = item.problem, self._plan.pool.kernels
        outcomes = self._plan.settled_outcomes(problem, known)
        runnable = [i for i in range(len(kernels)) if i not in outcomes]
        if runnable:
            tensors = self._tensors(problem)
            self._reserve(max(self._workspace_elements(kernels[i], problem) for i in runnable))
            runs, failed = self._sweep(problem, runnable, tensors, begin, careful)
            begin(None)
            outcomes |= failed | self._time(runs)
        return [outcomes[i] for i in range(len(kernels))]

    def _sweep(
        self, problem: Problem, kernels: Sequence[int], tensors: _Tensors, begin: BeginCallback, careful: bool
    ) -> tuple[dict[int, _TimedRun], dict[int, Outcome]]:
        """Run each kernel once, cold and timed, and check every element of its result.

        Returns:
            The runs whose results are right, and the outcomes of the other kernels.
        """
        sweep = self._queue_all(problem, kernels, tensors, begin, careful)
        begin(None)  # from here on no kernel runs alone
        self._require_right(problem, tensors, sweep)
        runs = {i: self._timed_run(i, sweep.work[i], sweep.queued_ms[i]) for i in sweep.ran()}
        return runs | self._time_leaders_again(runs), sweep.failed

    def _queue_all(
        self, problem: Problem, kernels: Sequence[int], tensors: _Tensors, begin: BeginCallback, careful: bool
    ) -> _Sweep:
        """Compile and queue each kernel, cold and timed, with the check of its result."""
        reference, sweep = self._reference(problem, tensors.operands), _Sweep()
        calls = [i for i in kernels if isinstance(self._plan.pool.kernels[i], VendorCall)]
        for i in calls:  # the first run waits for the device: the library tries its algorithms
            begin(i)
            try:
                sweep.work[i] = self._call(i, problem, tensors)
            except Exception as e:
                self._require_alive(e)
                sweep.failed[i] = Outcome("runtime_error", one_line(e))
        self._wrong.zero_()
        torch.cuda.synchronize()
        begin(None)
        self._start.record()
        begun = time.perf_counter()
        for _ in range(HEAD_START_CLEARS):
            self._cache.clear()
        for i in kernels:
            if i in sweep.failed:
                continue
            if careful:
                begin(i)
            try:
                if i not in sweep.work:
                    sweep.work[i] = self._launches(i, problem, tensors, begin)
            except Exception as e:
                sweep.failed[i] = Outcome("compile_error", one_line(e))
                continue
            try:
                self._run_once(i, sweep.work[i], tensors, reference)
                sweep.queued_ms[i] = (time.perf_counter() - begun) * 1e3
                if careful:
                    torch.cuda.synchronize()
            except Exception as e:
                self._require_alive(e)
                sweep.failed[i] = Outcome("runtime_error", one_line(e))
        return sweep

    def _require_right(self, problem: Problem, tensors: _Tensors, sweep: _Sweep) -> None:
        """Mark the kernels of a sweep whose results are wrong as failed.

        The faster fp32 algorithms of the reference are inexact on some problems, so kernels that differ from them run
        again against an fp64 reference. Times of those runs count as unreliable.
        """
        wrong = self._count_wrong()
        doubtful = [i for i in sweep.ran() if wrong[i]]
        if doubtful:
            reference = self._reference(problem, [o.double() for o in tensors.operands])
            self._wrong.zero_()
            for i in doubtful:
                self._run_once(i, sweep.work[i], tensors, reference)
            wrong = self._count_wrong()
        for i in doubtful:
            sweep.queued_ms[i] = math.inf
            if wrong[i]:
                text = f"{wrong[i]} of {tensors.result.numel()} elements beyond the tolerance"
                sweep.failed[i] = Outcome("wrong_result", text)

    def _time_leaders_again(self, runs: Mapping[int, _TimedRun]) -> dict[int, _TimedRun]:
        """Time the fastest of the unreliable runs once more: their times decide how all kernels are timed."""
        again = sorted((i for i, run in runs.items() if not run.reliable), key=lambda i: runs[i].ms)[:_LEADERS]
        for _ in range(HEAD_START_CLEARS if again else 0):
            self._cache.clear()
        for i in again:
            start, end = self._events[i]
            self._cache.clear()
            start.record()
            runs[i].work()
            end.record()
        torch.cuda.synchronize()
        return {
            i: replace(runs[i], ms=min(runs[i].ms, self._events[i][0].elapsed_time(self._events[i][1]))) for i in again
        }

    def _workspace_elements(self, kernel: Kernel | VendorCall, problem: Problem) -> int:
        return 0 if isinstance(kernel, VendorCall) else self._family.workspace_elements(kernel, problem)

    def _call(self, i: int, problem: Problem, tensors: _Tensors) -> Work:
        """Return the call of the vendor's library that kernel `i` is, after its first run."""
        call = bind_call(self._plan.pool.kernels[i], problem, self._plan.target.variant)
        call(tensors.operands)
        return partial(call, tensors.operands)

    def _launches(self, i: int, problem: Problem, tensors: _Tensors, begin: BeginCallback) -> Work:
        """Return the launches of kernel `i`, compiled (or read from disk) and loaded."""
        kernel = self._plan.pool.kernels[i]
        group = self._family.launches(kernel, problem, self._dtype, *tensors.operands, tensors.result, self._workspace)
        for item in group:
            if item.program not in self._loaded:
                begin(i)  # compiling may take long
                compile_program(item.program)[item.grid]  # asking for the launcher loads the binary
                self._loaded.add(item.program)
        return partial(launch_all, group)

    def _run_once(self, i: int, work: Work, tensors: _Tensors, reference: _Reference) -> None:
        """Queue one cold, timed run and the check of its result."""
        start, end = self._events[i]
        tensors.result.fill_(float("nan"))
        self._cache.clear()
        self._cache.clear()  # twice, which gives the host time to queue the launches
        start.record(self._stream)  # passed, not looked up: a problem has some hundred of these
        returned = work()
        end.record(self._stream)
        if returned is not None:
            tensors.result.copy_(returned.reshape(tensors.result.shape))
        count_mismatches(tensors.result, reference.values, self._wrong_of[i], tensors.rtol, reference.scale)

    def _timed_run(self, i: int, work: Work, queued_ms: float) -> _TimedRun:
        start, end = self._events[i]
        # The launch was queued before the device came to it, so no pause of the host lies within its time.
        reliable = queued_ms < self._start.elapsed_time(start)
        return _TimedRun(work, float(start.elapsed_time(end)), reliable)

    def _count_wrong(self) -> list[int]:
        try:
            return [int(n) for n in self._wrong[:, 0].tolist()]
        except Exception as e:
            raise EngineLostError(one_line(e)) from e

    def _require_alive(self, error: Exception) -> None:
        try:
            torch.cuda.synchronize()
        except Exception as lost:
            raise EngineLostError(one_line(lost)) from error

    def _time(self, right: Mapping[int, _TimedRun]) -> dict[int, Outcome]:
        """Time the kernels with right results in rounds."""
        timing, runs = self._plan.timing, list(right.values())
        estimates = [run.ms for run in runs]
        shares = timing_shares(estimates, [run.reliable for run in runs], timing)
        work = {
            at: capture_graph(run.work, share.unrolled)
            for at, (run, share) in enumerate(zip(runs, shares, strict=True))
            if share.rounds
        }
        samples = time_in_rounds(estimates, shares, GraphStopwatch(work, self._cache, self._uuid), timing)
        return {i: Outcome("ok", None, s) for i, s in zip(right, samples, strict=True)}

    def _tensors(self, problem: Problem) -> _Tensors:
        operands = random_operands(self._family, problem, self._dtype, "cuda", seed_of(problem))
        result = empty_result(self._family, problem, self._dtype, "cuda")
        rtol = self._plan.timing.rtol + self._family.imprecision(problem, self._dtype)
        return _Tensors(operands, result, rtol)

    def _reference(self, problem: Problem, operands: Sequence[torch.Tensor]) -> _Reference:
        values = self._family.reference(problem, *operands).float()
        return _Reference(values, scale_of(values))

    def _reserve(self, elements: int) -> None:
        if self._workspace.numel() < elements:
            self._workspace = torch.empty(0, device="cuda")
            self._workspace = torch.empty(elements, device="cuda")

    def _warm_up(self) -> None:
        """Raise the clocks and load the libraries before anything is timed."""
        a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        for _ in range(50):
            a = (a @ a).clamp_(-1, 1)
        torch.cuda.synchronize()

"""Measuring Triton kernels on a CUDA device; :mod:`tilewise.collect.stopwatch` has the regime.

A problem is measured in one sweep: all kernels are launched, checked and clocked without waiting for any, then timed in
rounds. Waiting for each would cost more than most kernels do. Who broke or hung the device cannot be told then; a
careful sweep, which waits after each kernel, finds out.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
import triton

from tilewise.collect import nvml
from tilewise.collect.engine import REGIME, Device, EngineLostError
from tilewise.collect.plan import Item, Plan
from tilewise.collect.results import Outcome
from tilewise.collect.rounds import measure, shares
from tilewise.collect.stopwatch import HEAD_START, Cache, GraphStopwatch, capture
from tilewise.errors import one_line
from tilewise.kernels.triton.check import count_mismatches, scale_of
from tilewise.kernels.triton.family import family_of
from tilewise.kernels.triton.program import Launch, Program, compile_program, launch_all
from tilewise.kernels.triton.tensors import empty_result, random_operands, seed_of
from tilewise.ops import Problem

_LEADERS = 3
_APART = 4  # counters lie 16 bytes apart: one alignment, one compilation of the check


@dataclass
class _Tensors:
    operands: tuple[torch.Tensor, ...]
    result: torch.Tensor
    rtol: float


@dataclass(frozen=True)
class _Reference:
    values: torch.Tensor
    scale: float


@dataclass(frozen=True)
class _Clocked:
    """A kernel that ran and was right: its launches, the time of a cold one, and whether that can be relied upon."""

    launches: tuple[Launch, ...]
    ms: float
    sure: bool


class GpuEngine:
    """Measures the kernels of the plan's target; one instance owns one device of this process."""

    def __init__(self, plan: Plan, index: int) -> None:
        torch.cuda.set_device(index)
        # references are computed in fp32; TF32 holds every 16-bit and 8-bit operand exactly, and sums in fp32 as well
        torch.backends.cudnn.allow_tf32 = True
        torch.backends.cuda.matmul.allow_tf32 = True
        self._plan = plan
        self._family = family_of(plan.target.op, plan.target.variant)
        self._dtype = plan.target.dtype
        properties = torch.cuda.get_device_properties(index)
        self._uuid = f"GPU-{properties.uuid}"
        self._name = properties.name
        self._cache = Cache()
        self._workspace = torch.empty(0, device="cuda")
        self._wrong = torch.zeros((len(plan.pool), _APART), dtype=torch.int32, device="cuda")
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
        return Device(self._name, self._uuid, nvml.driver_version(), libraries, REGIME)

    def measure(
        self, item: Item, known: Mapping[int, Outcome], begin: Callable[[int | None], None], careful: bool = False
    ) -> list[Outcome]:
        """See :class:`tilewise.collect.engine.Engine`."""
        problem, kernels = item.problem, self._plan.pool.kernels
        outcomes = self._plan.without_running(problem, known)
        runnable = [i for i in range(len(kernels)) if i not in outcomes]
        if runnable:
            tensors = self._tensors(problem)
            self._reserve(max(self._family.workspace_elements(kernels[i], problem) for i in runnable))
            clocked, failed = self._sweep(problem, runnable, tensors, begin, careful)
            begin(None)
            outcomes |= failed | self._time(clocked)
        return [outcomes[i] for i in range(len(kernels))]

    def _sweep(
        self,
        problem: Problem,
        kernels: Sequence[int],
        tensors: _Tensors,
        begin: Callable[[int | None], None],
        careful: bool,
    ) -> tuple[dict[int, _Clocked], dict[int, Outcome]]:
        """Run each kernel once, cold and clocked, and check every element of its result.

        Returns:
            Those that are right, and the outcomes of the others.
        """
        right = self._reference(problem, tensors.operands)
        launches: dict[int, tuple[Launch, ...]] = {}
        queued: dict[int, float] = {}
        failed: dict[int, Outcome] = {}
        self._wrong.zero_()
        torch.cuda.synchronize()
        begin(None)
        self._start.record()
        begun = time.perf_counter()
        for _ in range(HEAD_START):
            self._cache.clear()
        for i in kernels:
            if careful:
                begin(i)
            try:
                launches[i] = self._launches(i, problem, tensors, begin)
            except Exception as e:
                failed[i] = Outcome("compile_error", one_line(e))
                continue
            try:
                self._run_once(i, launches[i], tensors, right)
                queued[i] = (time.perf_counter() - begun) * 1e3
                if careful:
                    torch.cuda.synchronize()
            except Exception as e:
                self._require_alive(e)
                failed[i] = Outcome("runtime_error", one_line(e))
        begin(None)  # from here on nobody runs alone
        ran = [i for i in queued if i not in failed]
        wrong = self._count_wrong()
        doubtful = [i for i in ran if wrong[i]]
        if doubtful:  # the faster fp32 algorithms are inexact on some problems: fp64 decides
            right = self._reference(problem, [o.double() for o in tensors.operands])
            self._wrong.zero_()
            for i in doubtful:
                self._run_once(i, launches[i], tensors, right)
            wrong = self._count_wrong()
        for i in doubtful:
            queued[i] = math.inf
            if wrong[i]:
                text = f"{wrong[i]} of {tensors.result.numel()} elements beyond the tolerance"
                failed[i] = Outcome("wrong_result", text)
        clocked = {i: self._clocked(i, launches[i], queued[i]) for i in ran if i not in failed}
        return clocked | self._clocked_again(clocked), failed

    def _clocked_again(self, clocked: Mapping[int, _Clocked]) -> dict[int, _Clocked]:
        """The apparently fastest once more where the host may have held them up: they decide how all are timed."""
        again = sorted((i for i, run in clocked.items() if not run.sure), key=lambda i: clocked[i].ms)[:_LEADERS]
        for _ in range(HEAD_START if again else 0):
            self._cache.clear()
        for i in again:
            start, end = self._events[i]
            self._cache.clear()
            start.record()
            launch_all(clocked[i].launches)
            end.record()
        torch.cuda.synchronize()
        return {
            i: replace(clocked[i], ms=min(clocked[i].ms, self._events[i][0].elapsed_time(self._events[i][1])))
            for i in again
        }

    def _launches(
        self, i: int, problem: Problem, tensors: _Tensors, begin: Callable[[int | None], None]
    ) -> tuple[Launch, ...]:
        """What kernel `i` launches, compiled (or read from the disk) and loaded."""
        kernel = self._plan.pool.kernels[i]
        group = self._family.launches(kernel, problem, self._dtype, *tensors.operands, tensors.result, self._workspace)
        for item in group:
            if item.program not in self._loaded:
                begin(i)  # compiling may take long
                compile_program(item.program)[item.grid]  # asking for the launcher loads the binary
                self._loaded.add(item.program)
        return group

    def _run_once(self, i: int, launches: Sequence[Launch], tensors: _Tensors, right: _Reference) -> None:
        """Queue one cold, clocked launch and the check of its result."""
        start, end = self._events[i]
        tensors.result.fill_(float("nan"))
        self._cache.clear()
        self._cache.clear()  # twice: while it lasts the host queues what follows
        start.record(self._stream)  # given, not looked up: there are some hundred of these a problem
        launch_all(launches)
        end.record(self._stream)
        count_mismatches(tensors.result, right.values, self._wrong_of[i], tensors.rtol, right.scale)

    def _clocked(self, i: int, launches: tuple[Launch, ...], queued_ms: float) -> _Clocked:
        start, end = self._events[i]
        # a launch that was queued when the device came to it: no pause of the host lies within its time
        sure = queued_ms < self._start.elapsed_time(start)
        return _Clocked(launches, float(start.elapsed_time(end)), sure)

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

    def _time(self, clocked: Mapping[int, _Clocked]) -> dict[int, Outcome]:
        """Time all that ran well, in rounds."""
        timing, runs = self._plan.timing, list(clocked.values())
        parts = shares([run.ms for run in runs], [run.sure for run in runs], timing)
        work = {
            at: capture(partial(launch_all, run.launches), part.unrolled)
            for at, (run, part) in enumerate(zip(runs, parts, strict=True))
            if part.rounds
        }
        samples = measure([run.ms for run in runs], parts, GraphStopwatch(work, self._cache, self._uuid), timing)
        return {i: Outcome("ok", None, s) for i, s in zip(clocked, samples, strict=True)}

    def _tensors(self, problem: Problem) -> _Tensors:
        operands = random_operands(self._family, problem, self._dtype, "cuda", seed_of(problem))
        result = empty_result(self._family, problem, self._dtype, "cuda")
        rtol = self._plan.timing.rtol + self._family.imprecision(problem, self._dtype)
        return _Tensors(operands, result, rtol)

    def _reference(self, problem: Problem, operands: Sequence[torch.Tensor]) -> _Reference:
        right = self._family.reference(problem, *operands).float()
        return _Reference(right, scale_of(right))

    def _reserve(self, elements: int) -> None:
        if self._workspace.numel() < elements:
            self._workspace = torch.empty(0, device="cuda")
            self._workspace = torch.empty(elements, device="cuda")

    def _warm_up(self) -> None:
        """Bring clocks up and let the libraries load before anything is timed."""
        a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
        for _ in range(50):
            a = (a @ a).clamp_(-1, 1)
        torch.cuda.synchronize()

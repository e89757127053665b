"""Measuring Triton kernels on a CUDA device.

Regime: before each sample other data fills the L2 cache (twice its size, outside the timed window); a sample is one
replay of a CUDA graph that holds `unrolled` launches, between two events. So a kernel longer than the window is timed
cold, as it runs between the other layers of a network, and a shorter one mostly warm but free of launch gaps.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
import triton

from tilewise.collect import nvml
from tilewise.collect.engine import Device, EngineLostError
from tilewise.collect.plan import Item, Plan
from tilewise.collect.results import Outcome
from tilewise.collect.rounds import measure, unroll_of
from tilewise.kernels.rules import unsupported
from tilewise.kernels.triton.check import count_mismatches, scale_of
from tilewise.kernels.triton.family import family_of
from tilewise.kernels.triton.program import Launch, compile_program, launch
from tilewise.kernels.triton.tensors import empty_result, random_operands
from tilewise.ops import Problem

_MAX_ERROR_CHARS = 300
_LOADING_MS = 1.0


@dataclass
class _Tensors:
    operands: tuple[torch.Tensor, ...]
    result: torch.Tensor
    reference: torch.Tensor
    scale: float
    rtol: float


def clear_l2(scratch: torch.Tensor) -> None:
    """Evict everything by reading `scratch`: lines that were only read need no writing back while a kernel is timed."""
    scratch.sum()


class _Stopwatch:
    """Times graphs; see the module's text for the regime."""

    def __init__(self, graphs: Sequence[torch.cuda.CUDAGraph], unrolled: int, scratch: torch.Tensor, uuid: str) -> None:
        self._graphs = graphs
        self._unrolled = unrolled
        self._scratch = scratch
        self._uuid = uuid
        self._clock: int | None = None
        self._events = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)) for _ in self._graphs
        ]

    def sample(self, order: Sequence[int]) -> list[float]:
        for i in order:
            start, end = self._events[i]
            clear_l2(self._scratch)
            start.record()
            self._graphs[i].replay()
            end.record()
        self._clock = nvml.sm_clock_mhz(self._uuid)  # the queue is still running: this is the clock under load
        torch.cuda.synchronize()
        return [self._events[i][0].elapsed_time(self._events[i][1]) / self._unrolled for i in order]

    def clock_mhz(self) -> int | None:
        return self._clock


class GpuEngine:
    """Measures the kernels of the plan's target; one instance owns one device of this process."""

    def __init__(self, plan: Plan, index: int) -> None:
        torch.cuda.set_device(index)
        torch.backends.cudnn.allow_tf32 = False
        torch.backends.cuda.matmul.allow_tf32 = False
        self._plan = plan
        self._family = family_of(plan.target.op, plan.target.variant)
        self._dtype = plan.target.dtype
        properties = torch.cuda.get_device_properties(index)
        self._uuid = f"GPU-{properties.uuid}"
        self._name = properties.name
        self._scratch = torch.zeros(2 * properties.L2_cache_size // 4, device="cuda")
        self._workspace = torch.empty(0, device="cuda")
        self._bad = torch.zeros(1, dtype=torch.int32, device="cuda")
        self._stream = torch.cuda.Stream()
        torch.cuda.set_stream(self._stream)
        self._warm_up()

    def device(self) -> Device:
        """Describe the device."""
        libraries = f"torch {torch.__version__}, triton {triton.__version__}, CUDA {torch.version.cuda}"
        return Device(self._name, self._uuid, nvml.driver_version(), libraries, "cold_l2+graph")

    def measure(self, item: Item, known: Mapping[int, Outcome], begin: Callable[[int | None], None]) -> list[Outcome]:
        """See :class:`tilewise.collect.engine.Engine`."""
        problem = item.problem
        outcomes: dict[int, Outcome] = dict(known)
        kernels = self._plan.pool.kernels
        for i, kernel in enumerate(kernels):
            if i not in outcomes and (why := unsupported(kernel, problem, self._plan.target.variant)):
                outcomes[i] = Outcome("unsupported", why)
        runnable = [i for i in range(len(kernels)) if i not in outcomes]
        if runnable:
            tensors = self._tensors(problem)
            self._reserve(max(self._family.workspace_elements(kernels[i], problem) for i in runnable))
            launches: dict[int, tuple[Launch, ...]] = {}
            estimates: dict[int, float] = {}
            for i in runnable:
                begin(i)
                launches[i] = self._family.launches(
                    kernels[i], problem, self._dtype, *tensors.operands, tensors.result, self._workspace
                )
                result = self._try(launches[i], tensors)
                if isinstance(result, Outcome):
                    outcomes[i] = result
                else:
                    estimates[i] = result
            begin(None)
            good = list(estimates)
            outcomes |= self._time([launches[i] for i in good], [estimates[i] for i in good], good)
        return [outcomes[i] for i in range(len(kernels))]

    def _try(self, launches: Sequence[Launch], tensors: _Tensors) -> Outcome | float:
        """Run once and check every element; the rough milliseconds of a second run where all is well."""
        try:
            for item in launches:
                compile_program(item.program)
        except Exception as e:
            return Outcome("compile_error", _short(e))
        try:
            tensors.result.fill_(float("nan"))
            first = self._clocked(launches)
            self._bad.zero_()
            count_mismatches(tensors.result, tensors.reference, self._bad, tensors.rtol, tensors.scale)
            wrong = int(self._bad.item())
            if wrong:
                return Outcome("wrong_result", f"{wrong} of {tensors.result.numel()} elements beyond the tolerance")
            # a first launch includes loading the program, which matters only beside a short kernel
            return first if first > _LOADING_MS else self._clocked(launches)
        except Exception as e:
            try:
                torch.cuda.synchronize()
            except Exception as lost:
                raise EngineLostError(_short(lost)) from e
            return Outcome("runtime_error", _short(e))

    def _clocked(self, launches: Sequence[Launch]) -> float:
        """Rough milliseconds. The clearing before gives the host time to queue all, so launch overhead stays out."""
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        clear_l2(self._scratch)
        clear_l2(self._scratch)
        start.record()
        for item in launches:
            launch(item)
        end.record()
        end.synchronize()
        return float(start.elapsed_time(end))

    def _time(
        self, launches: Sequence[tuple[Launch, ...]], rough: Sequence[float], which: Sequence[int]
    ) -> dict[int, Outcome]:
        if not launches:
            return {}
        timing = self._plan.timing
        unrolled = unroll_of(min(rough), timing)
        graphs = [self._capture(group, unrolled) for group in launches]
        watch = _Stopwatch(graphs, unrolled, self._scratch, self._uuid)
        samples = measure(rough, unrolled, watch, timing)
        return {i: Outcome("ok", None, s) for i, s in zip(which, samples, strict=True)}

    def _capture(self, launches: Sequence[Launch], unrolled: int) -> torch.cuda.CUDAGraph:
        # torch.cuda.graph() collects garbage and empties the cache at each capture: tens of milliseconds. Nothing is
        # allocated while these graphs are captured, so the bare calls are enough.
        graph = torch.cuda.CUDAGraph()
        graph.capture_begin()
        for _ in range(unrolled):
            for item in launches:
                launch(item)
        graph.capture_end()
        return graph

    def _tensors(self, problem: Problem) -> _Tensors:
        seed = int.from_bytes(hashlib.sha256(repr(problem.group_key).encode()).digest()[:7])
        operands = random_operands(self._family, problem, self._dtype, "cuda", seed)
        right = self._family.reference(problem, *operands)
        result = empty_result(self._family, problem, self._dtype, "cuda")
        rtol = self._plan.timing.rtol + self._family.imprecision(problem, self._dtype)
        return _Tensors(operands, result, right, scale_of(right), rtol)

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


def _short(error: BaseException) -> str:
    text = f"{type(error).__name__}: {error}".strip()
    return text.splitlines()[0][:_MAX_ERROR_CHARS]

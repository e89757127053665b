"""Engine that measures CK Tile's kernels through its C libraries, each with one kernel.

Each library measures its own time, in the regime it was built for. This module checks the results, as for all kernels.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch

from tilewise.collect._outcomes import Outcome
from tilewise.collect._plan import Item, Plan
from tilewise.collect._rounds import time_in_rounds, timing_shares
from tilewise.collect.engines._engine import BeginCallback, Device
from tilewise.errors import ConfigError, KernelError, LibraryError
from tilewise.kernels.ck import LIBRARY_TYPES, CkLibrary, TensorMemory, fp8_element
from tilewise.kernels.triton.programs import TORCH_TYPES, family_of, random_operands, scale_of, seed_of
from tilewise.ops import Problem

REGIME = "library"  # warm or cold cache and number of repetitions: as the library was built


class CkEngine:
    """Engine for the kernels of the plan's target, see :class:`tilewise.collect.engines.Engine`.

    Args:
        files: the library of each kernel, by the kernel's name.
        memory: where the tensors lie.
        plan: the plan to measure.
        index: of the device.
    """

    def __init__(self, files: Mapping[str, Path], memory: TensorMemory, plan: Plan, index: int) -> None:
        self._plan, self._memory = plan, memory
        self._files = [files[name] for name in plan.pool.names]
        self._open: dict[int, CkLibrary] = {}
        if torch.cuda.is_available():
            torch.cuda.set_device(index)  # for the libraries too: the current device belongs to the thread

    def device(self) -> Device:
        """Describe the device."""
        has_gpu = torch.cuda.is_available()
        name = torch.cuda.get_device_name() if has_gpu else f"{platform.machine()} without a GPU"
        return Device(name, None, None, f"CK Tile's libraries, torch {torch.__version__}", REGIME)

    def measure(
        self, item: Item, known: Mapping[int, Outcome], begin: BeginCallback, careful: bool = False
    ) -> list[Outcome]:
        """Measure one problem; every run is announced and ends before the next begins, whether `careful` or not."""
        kernels, timing = self._plan.pool.kernels, replace(self._plan.timing, max_unroll=1)
        outcomes = self._plan.settled_outcomes(item.problem, known)
        runnable = [i for i in range(len(kernels)) if i not in outcomes]
        if runnable:
            runs = _Runs(self._library, _Case(self._plan, item.problem, self._memory), begin)
            first = {i: ms for i in runnable if (ms := runs.run_checked(i)) is not None}
            estimates = list(first.values())
            shares = timing_shares(estimates, [True] * len(first), timing)
            samples = time_in_rounds(estimates, shares, _Stopwatch(runs, list(first)), timing)
            begin(None)
            outcomes |= {i: Outcome("ok", None, s) for i, s in zip(first, samples, strict=True)} | runs.failed
        return [outcomes[i] for i in range(len(kernels))]

    def _library(self, i: int) -> CkLibrary:
        """Return the library of kernel `i`, opened at its first run."""
        if i not in self._open:
            self._open[i] = LIBRARY_TYPES[self._plan.target.op].open(self._files[i])
        return self._open[i]


class _Case:
    """Operands of a problem and its right result."""

    def __init__(self, plan: Plan, problem: Problem, memory: TensorMemory) -> None:
        target, place = plan.target, "cuda" if memory == "device" else "cpu"
        self.problem, self.variant, self._family = problem, target.variant, family_of(target.op, target.variant)
        self.operands = random_operands(self._family, problem, target.dtype, place, seed_of(problem))
        if target.dtype == "fp8":
            self.operands = tuple(o.float().to(getattr(torch, fp8_element(target.arch))) for o in self.operands)
        result_type = torch.float16 if target.dtype == "fp8" else TORCH_TYPES[target.dtype]
        self.result = torch.empty(self._family.result(problem), device=place, dtype=result_type)
        self._rtol = plan.timing.rtol
        self._reference = self._compute_reference(self.operands)

    def count_wrong(self) -> int:
        """Return the number of wrong elements; a result that differs from the fp32 reference is compared with fp64."""
        return self._mismatches(self._reference) and self._mismatches(self._exact)

    def _mismatches(self, reference: torch.Tensor) -> int:
        error = (self.result.to(reference.device).float() - reference).abs()
        right = error <= self._rtol * (reference.abs() + scale_of(reference))  # False where the result is NaN
        return int((~right).sum())

    @cached_property
    def _exact(self) -> torch.Tensor:
        return self._compute_reference([o.double() for o in self.operands])

    def _compute_reference(self, operands: Sequence[torch.Tensor]) -> torch.Tensor:
        place = "cuda" if torch.cuda.is_available() else "cpu"  # the fastest available, wherever the operands lie
        reference: torch.Tensor = self._family.reference(self.problem, *(o.to(place) for o in operands)).float()
        return reference


class _Runs:
    """Runner of kernels on one case.

    Attributes:
        failed: outcomes of kernels that failed, by index; they do not run again.
    """

    def __init__(self, library: Callable[[int], CkLibrary], case: _Case, begin: BeginCallback) -> None:
        self._library, self._case, self._begin = library, case, begin
        self.failed: dict[int, Outcome] = {}

    def run_checked(self, i: int) -> float | None:
        """Run a kernel and check its result; return milliseconds, or None if it failed or the result is wrong."""
        self._case.result.fill_(math.nan)
        ms = self.run(i)
        self._begin(None)  # the check may take longer than a kernel may
        if ms is not None and (wrong := self._case.count_wrong()):
            text = f"{wrong} of {self._case.result.numel()} elements beyond the tolerance"
            self.failed[i] = Outcome("wrong_result", text)
        return None if i in self.failed else ms

    def run(self, i: int) -> float | None:
        """Run a kernel and return milliseconds, or None if it failed, now or earlier."""
        if i in self.failed:
            return None
        self._begin(i)
        case, pointers = self._case, [o.data_ptr() for o in self._case.operands]
        try:
            library = self._library(i)
            if not library.is_supported(case.problem, case.variant):
                raise KernelError(f"{library.path.name} does not support it")
            ms = library.run(case.problem, case.variant, pointers, case.result.data_ptr())
            if not ms > 0:
                raise LibraryError(f"{library.path} gives a time of {ms:g} ms")
        except KernelError as e:
            self.failed[i] = Outcome("unsupported", str(e))
        except (ConfigError, LibraryError) as e:
            self.failed[i] = Outcome("runtime_error", str(e))
        return None if i in self.failed else ms


class _Stopwatch:
    """Stopwatch that asks the libraries for their times, see :class:`tilewise.collect._rounds.Stopwatch`."""

    def __init__(self, runs: _Runs, kernels: Sequence[int]) -> None:
        self._runs, self._kernels = runs, kernels

    def sample(self, order: Sequence[int]) -> list[float]:
        """Return the time of each kernel in ms; infinity for a kernel that failed, which so cannot be the fastest."""
        times = (self._runs.run(self._kernels[at]) for at in order)
        return [math.inf if ms is None else ms for ms in times]

    def clock_mhz(self) -> int | None:
        """Return None: the libraries do not report a clock."""
        return None

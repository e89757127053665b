"""Measuring CK Tile's kernels through its C libraries, one kernel a library.

The time is the library's own, in the regime that it was built for; results are checked here, as those of every other
kernel are.
"""

from __future__ import annotations

import math
import platform
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path

import torch

from tilewise.collect.engine import Device
from tilewise.collect.plan import Item, Plan
from tilewise.collect.results import Outcome
from tilewise.collect.rounds import measure, shares
from tilewise.errors import ConfigError, KernelError, LibraryError
from tilewise.kernels.ck.arrays import fp8_element
from tilewise.kernels.ck.libraries import KINDS, Memory
from tilewise.kernels.ck.library import Library
from tilewise.kernels.triton.check import scale_of
from tilewise.kernels.triton.family import family_of
from tilewise.kernels.triton.tensors import TORCH_TYPES, random_operands, seed_of
from tilewise.ops import Problem

REGIME = "library"  # warm or cold, and how often repeated: as the library was built


class CkEngine:
    """Measures the kernels of the plan's target; see :class:`tilewise.collect.engine.Engine`.

    Args:
        files: of the library that is each kernel, by the kernel's name.
        memory: where their tensors lie.
        plan: what is measured.
        index: of the device.
    """

    def __init__(self, files: Mapping[str, Path], memory: Memory, plan: Plan, index: int) -> None:
        self._plan, self._memory = plan, memory
        self._files = [files[name] for name in plan.pool.names]
        self._open: dict[int, Library] = {}
        if torch.cuda.is_available():
            torch.cuda.set_device(index)  # the libraries' as well: it belongs to the thread

    def device(self) -> Device:
        """Describe the device."""
        there = torch.cuda.is_available()
        name = torch.cuda.get_device_name() if there else f"{platform.machine()} without a GPU"
        return Device(name, None, None, f"CK Tile's libraries, torch {torch.__version__}", REGIME)

    def measure(
        self, item: Item, known: Mapping[int, Outcome], begin: Callable[[int | None], None], careful: bool = False
    ) -> list[Outcome]:
        """See :class:`tilewise.collect.engine.Engine`; every run is announced, and has ended when the next begins."""
        kernels, timing = self._plan.pool.kernels, replace(self._plan.timing, max_unroll=1)
        outcomes = self._plan.without_running(item.problem, known)
        runnable = [i for i in range(len(kernels)) if i not in outcomes]
        if runnable:
            runs = _Runs(self._library, _Case(self._plan, item.problem, self._memory), begin)
            first = {i: ms for i in runnable if (ms := runs.checked(i)) is not None}
            estimates = list(first.values())
            parts = shares(estimates, [True] * len(first), timing)
            samples = measure(estimates, parts, _Stopwatch(runs, list(first)), timing)
            begin(None)
            outcomes |= {i: Outcome("ok", None, s) for i, s in zip(first, samples, strict=True)} | runs.failed
        return [outcomes[i] for i in range(len(kernels))]

    def _library(self, i: int) -> Library:
        """The library that is kernel `i`, open from its first run on."""
        if i not in self._open:
            self._open[i] = KINDS[self._plan.target.op].open(self._files[i])
        return self._open[i]


class _Case:
    """A problem's operands and its right result."""

    def __init__(self, plan: Plan, problem: Problem, memory: Memory) -> None:
        target, place = plan.target, "cuda" if memory == "device" else "cpu"
        self.problem, self.variant, self._family = problem, target.variant, family_of(target.op, target.variant)
        self.operands = random_operands(self._family, problem, target.dtype, place, seed_of(problem))
        if target.dtype == "fp8":
            self.operands = tuple(o.float().to(getattr(torch, fp8_element(target.arch))) for o in self.operands)
        result_type = torch.float16 if target.dtype == "fp8" else TORCH_TYPES[target.dtype]
        self.result = torch.empty(self._family.result(problem), device=place, dtype=result_type)
        self._rtol = plan.timing.rtol
        self._right = self._reference(self.operands)

    def wrong(self) -> int:
        """How many elements of the result are; where the fp32 answer is in doubt, by the fp64 one."""
        return self._mismatches(self._right) and self._mismatches(self._exact)

    def _mismatches(self, right: torch.Tensor) -> int:
        error = (self.result.to(right.device).float() - right).abs()
        return int((~(error <= self._rtol * (right.abs() + scale_of(right)))).sum())  # also where it is NaN

    @cached_property
    def _exact(self) -> torch.Tensor:
        return self._reference([o.double() for o in self.operands])

    def _reference(self, operands: Sequence[torch.Tensor]) -> torch.Tensor:
        place = "cuda" if torch.cuda.is_available() else "cpu"  # the fastest there is, wherever the operands lie
        right: torch.Tensor = self._family.reference(self.problem, *(o.to(place) for o in operands)).float()
        return right


class _Runs:
    """Runs kernels on a case; what fails is noted in `failed` and not run again."""

    def __init__(self, library: Callable[[int], Library], case: _Case, begin: Callable[[int | None], None]) -> None:
        self._library, self._case, self._begin = library, case, begin
        self.failed: dict[int, Outcome] = {}

    def checked(self, i: int) -> float | None:
        """Milliseconds of a run whose result is right; None where it failed."""
        self._case.result.fill_(math.nan)
        ms = self.run(i)
        self._begin(None)  # the check may take longer than the kernel may
        if ms is not None and (wrong := self._case.wrong()):
            text = f"{wrong} of {self._case.result.numel()} elements beyond the tolerance"
            self.failed[i] = Outcome("wrong_result", text)
        return None if i in self.failed else ms

    def run(self, i: int) -> float | None:
        """Milliseconds of a run; None where it failed, now or before."""
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
    """A round of samples by the libraries' own clocks; see :class:`tilewise.collect.rounds.Stopwatch`."""

    def __init__(self, runs: _Runs, kernels: Sequence[int]) -> None:
        self._runs, self._kernels = runs, kernels

    def sample(self, order: Sequence[int]) -> list[float]:
        """One time each; one that fails gets none that could be the best."""
        times = (self._runs.run(self._kernels[at]) for at in order)
        return [math.inf if ms is None else ms for ms in times]

    def clock_mhz(self) -> int | None:
        """Nobody knows."""
        return None

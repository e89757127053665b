"""Engine that measures a tuned kernel in the worker processes of ``tilewise collect``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace

from tilewise.autotuning._call import Call
from tilewise.autotuning._machines import CPU, machine_of
from tilewise.autotuning._measure_call import measure_call, try_call
from tilewise.autotuning.op._find_kernel import find_kernel
from tilewise.collect import Item, Outcome, Plan
from tilewise.collect.engines import BeginCallback, Device, EngineLostError
from tilewise.errors import ConfigError, one_line

REGIME = "kernel"  # of times of a tuned kernel's own calls


class KernelEngine:
    """Engine for the configurations of a tuned kernel; see :class:`tilewise.collect.engines.Engine`.

    Results are not checked: a kernel of the user's own has no reference here.

    Args:
        plan: the plan to measure.
        index: of the GPU, if there is one.
        place: of the kernel; see :func:`tilewise.autotuning.op.find_kernel`.

    Raises:
        UsageError: there is no such kernel, or it is no op.
    """

    def __init__(self, plan: Plan, index: int, place: str) -> None:
        self._plan, self._kernel = plan, find_kernel(place)
        by_config = {kernel.config: name for name, kernel in self._kernel.op.kernels.items()}
        by_name = {c.name: c for c in self._kernel.configurations}
        self._configurations = [by_name[by_config[kernel.config]] for kernel in plan.pool.kernels]
        self._bench = replace(self._kernel.bench, timing_settings=plan.timing)
        torch = sys.modules.get("torch")
        self._cuda = torch.cuda if torch is not None and torch.cuda.is_available() else None
        if self._cuda is not None:
            self._cuda.set_device(index)

    def device(self) -> Device:
        """Describe the device that the plan's first problem runs on.

        Raises:
            ConfigError: it is of another arch than the plan's target.
        """
        machine = machine_of(self._call(self._plan.items[0]), self._kernel.code)
        wanted = self._plan.target.arch
        if machine.arch not in (wanted, CPU):
            raise ConfigError(f"arch must be that of the GPU, {machine.arch}, got {wanted}; set arch={machine.arch}")
        libraries = ", ".join(f"{n} {v}" for n, v in (("torch", machine.torch), ("triton", machine.triton)) if v)
        return Device(machine.device, None, machine.driver or None, libraries, REGIME)

    def measure(
        self, item: Item, known: Mapping[int, Outcome], begin: BeginCallback, careful: bool = False
    ) -> list[Outcome]:
        """Measure one problem.

        Raises:
            EngineLostError: a configuration broke the device context.
        """
        outcomes = self._plan.settled_outcomes(item.problem, known)
        call = self._call(item)
        for i in range(len(self._configurations)):
            if i in outcomes:
                continue
            begin(i)  # compiling may take long, and a fault has a culprit
            failure = try_call(call, self._configurations[i], self._bench)
            self._require_alive()
            if failure is not None:
                outcomes[i] = failure
        begin(None)
        left = [i for i in range(len(self._configurations)) if i not in outcomes]
        measured = measure_call(call, [self._configurations[i] for i in left], self._bench)
        self._require_alive()
        outcomes |= {i: measured[self._configurations[i].name] for i in left}
        return [outcomes[i] for i in range(len(self._configurations))]

    def _call(self, item: Item) -> Call:
        return self._kernel.call_for(**item.problem.to_dict())

    def _require_alive(self) -> None:
        if self._cuda is None:
            return
        try:
            self._cuda.synchronize()
        except Exception as e:
            raise EngineLostError(one_line(e)) from e

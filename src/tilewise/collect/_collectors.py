"""The collectors, one per backend: each measures the kernels of a plan in the way that its backend needs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tilewise.collect._plan import Plan
from tilewise.collect._progress import ProgressLine
from tilewise.collect._run import CollectLimits, CollectReport, Devices, collect_from_libraries, collect_on_gpus
from tilewise.collect.engines import FoundKernels, find_plan_kernels
from tilewise.errors import KernelError


@dataclass(frozen=True)
class CollectTask:
    """A plan to measure, and the means for it.

    Attributes:
        plan: the plan.
        output: the table to write.
        devices: GPU indices, or ``"all"``.
        limits: the time budget.
        jobs: number of compiling processes; None for one per core.
        libraries: files and folders of compiled kernels, separated by colons; None for those of the environment.
        memory: memory that the libraries' convolutions take; None for the libraries' default.
        found: the plan's kernels if the libraries have been read already.
    """

    plan: Plan
    output: Path
    devices: Devices
    limits: CollectLimits
    jobs: int | None = None
    libraries: str | None = None
    memory: str | None = None
    found: FoundKernels | None = None


def _on_gpus(task: CollectTask) -> CollectReport:
    return collect_on_gpus(task.plan, task.output, task.devices, task.jobs, ProgressLine(), task.limits)


def _from_libraries(task: CollectTask) -> CollectReport:
    found = task.found or find_plan_kernels(task.plan, task.libraries, task.memory)
    return collect_from_libraries(task.plan, task.output, found, task.devices, ProgressLine(), task.limits)


COLLECTORS: dict[str, Callable[[CollectTask], CollectReport]] = {
    "triton": _on_gpus,
    "vendor": _on_gpus,
    "ck_tile": _from_libraries,
}


def collect_plan(task: CollectTask) -> CollectReport:
    """Measure a plan with the collector of its kernels' backends, and show progress on the terminal.

    Raises:
        KernelError: a backend has no collector, or two have different ones.
        ConfigError: a kernel of the plan has no library.
        MeasurementError: torch, triton or a device is missing.
        DataError: the output exists, or its journal belongs to another plan.
    """
    names = [source.name for source in task.plan.pool.backend.sources]
    for name in names:
        if name not in COLLECTORS:
            raise KernelError(f"kernels of {name} cannot be measured here; leave them out of the plan's pool")
    collectors = dict.fromkeys(COLLECTORS[name] for name in names)
    if len(collectors) > 1:
        raise KernelError(f"kernels of {' and '.join(names)} are measured in different ways; make a plan for each")
    return next(iter(collectors))(task)

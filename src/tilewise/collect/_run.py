"""One measuring run, from a plan to a parquet file: compile ahead, measure, write.

A journal beside the output holds the measured problems until all are done. Then the table is written and the journal
removed. Neither an output nor another run's journal is ever overwritten.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from tilewise.collect._compile_ahead import compile_ahead
from tilewise.collect._coordinator import Coordinator
from tilewise.collect._journal import Journal
from tilewise.collect._plan import Plan
from tilewise.collect._result_table import is_measurement_table, measurement_table, write_measurement_table
from tilewise.collect.engines import EngineFactory, FoundKernels
from tilewise.errors import ConfigError, DataError, MeasurementError, UnfinishedError

ProgressCallback = Callable[[str, int, int], None]  # takes the step, the number done, and the total
Devices = Sequence[int] | Literal["all"]


@dataclass(frozen=True)
class CollectLimits:
    """Limits of a run.

    Attributes:
        budget_s: seconds of measuring in which problems may be begun; None for no limit, 0 measures nothing.
        partial: write a table of the measured problems if the budget ends first.

    Raises:
        ConfigError: `budget_s` is negative.
    """

    budget_s: float | None = None
    partial: bool = False

    def __post_init__(self) -> None:
        if self.budget_s is not None and not self.budget_s >= 0:
            raise ConfigError(f"budget_s must not be negative, got {self.budget_s}")


@dataclass(frozen=True)
class CollectReport:
    """Result of a run.

    Attributes:
        path: the table that was written; None if problems are left and no partial table was asked for.
        problems: number of problems in the plan.
        done: number of measured problems.
        by_status: number of rows by status.
        unusable: the reason of each device that was given up, by index.
    """

    path: Path | None
    problems: int
    done: int
    by_status: dict[str, int]
    unusable: dict[int, str]

    @property
    def rows(self) -> int:
        """Number of rows measured."""
        return sum(self.by_status.values())

    @property
    def valid(self) -> int:
        """Number of rows with status ok."""
        return self.by_status.get("ok", 0)

    @property
    def left(self) -> int:
        """Number of problems left to measure."""
        return self.problems - self.done

    def require_complete(self) -> None:
        """Check that all problems are measured.

        Raises:
            UnfinishedError: some are left.
        """
        if self.left:
            raise UnfinishedError(
                f"{self.left} of {self.problems} problems are left: the budget is spent; the same command goes on"
            )

    def __str__(self) -> str:
        outcomes = ", ".join(f"{count} {status}" for status, count in self.by_status.items()) or "none"
        return f"{self.path or 'no table yet'}: {self.done} of {self.problems} problems, {self.rows} rows: {outcomes}"


def journal_path(output: Path) -> Path:
    """Return the path of the journal, which lies beside the output until the table is written."""
    return output.with_name(f"{output.name}.journal")


def partial_path(output: Path, done: int, problems: int) -> Path:
    """Return the path of a partial table; without the suffix .parquet, so that reading a folder skips it."""
    return output.with_name(f"{output.name}.{done}-of-{problems}")


def collect_on_gpus(
    plan: Plan,
    output: Path,
    devices: Devices,
    jobs: int | None,
    progress: ProgressCallback,
    limits: CollectLimits = CollectLimits(),
) -> CollectReport:
    """Compile the plan's binaries on all cores, then measure on this machine's GPUs.

    Args:
        plan: the plan to measure.
        output: the table to write.
        devices: GPU indices, or ``"all"``.
        jobs: number of compiling processes; None for one per core.
        progress: called as work goes on.
        limits: how far to go.

    Raises:
        MeasurementError: torch, triton or a device is missing.
        DataError: see :func:`collect_with_engine`; raised before anything is compiled.
    """
    _require_open(plan, output)
    if limits.budget_s == 0 or output.exists():  # nothing is measured: any machine may read the journal
        return collect_with_engine(plan, output, _no_engine, [], progress, limits)
    indices = _gpus(devices)
    with Journal(_with_folder(journal_path(output)), plan) as journal:  # opened now to fail before compiling
        left = [i for i in range(len(plan.items)) if i not in journal.entries]
    failed = compile_ahead(plan, jobs, lambda done, total: progress("compiling", done, total), left)
    for config, error in failed.items():
        warnings.warn(f"{config} does not compile, its rows will say so: {error}", stacklevel=2)
    from tilewise.collect.engines import GpuEngine

    return collect_with_engine(plan, output, GpuEngine, indices, progress, limits)


def collect_from_libraries(
    plan: Plan,
    output: Path,
    found: FoundKernels,
    devices: Devices,
    progress: ProgressCallback,
    limits: CollectLimits = CollectLimits(),
) -> CollectReport:
    """Measure the kernels of CK Tile's libraries.

    Args:
        plan: the plan to measure.
        output: the table to write.
        found: the libraries of the plan's kernels.
        devices: GPU indices, or ``"all"``; libraries that take host memory need no GPU.
        progress: called as work goes on.
        limits: how far to go.

    Raises:
        ConfigError: a kernel of the plan has no library.
        MeasurementError: torch, triton or a device is missing.
        DataError: see :func:`collect_with_engine`.
    """
    if limits.budget_s == 0:
        return collect_with_engine(plan, output, _no_engine, [], progress, limits)
    on_host = [0] if devices == "all" else devices
    indices = on_host if found.memory == "host" else _gpus(devices)
    return collect_with_engine(plan, output, found.engine(plan), indices, progress, limits)


def collect_with_engine(
    plan: Plan,
    output: Path,
    factory: EngineFactory,
    devices: Sequence[int],
    progress: ProgressCallback,
    limits: CollectLimits = CollectLimits(),
) -> CollectReport:
    """Measure a plan, resuming from its journal if there is one, and write the table.

    If the budget ends before all problems are measured, the journal stays, and the same call resumes from it.

    Args:
        plan: the plan to measure.
        output: the table to write.
        factory: makes the engine of each worker process.
        devices: indices, one worker process each.
        progress: called as work goes on.
        limits: how far to go.

    Raises:
        DataError: the output exists already, or the journal beside it cannot be used.
        MeasurementError: no worker can be started.
    """
    _require_open(plan, output)
    with Journal(_with_folder(journal_path(output)), plan) as journal:
        finished = _is_written(plan, journal, output)  # by a run that was killed before it removed the journal
        if not finished:
            require_new(output)  # another run may have finished before the journal was locked
        with Coordinator(plan, factory, devices) as coordinator:
            coordinator.run(journal, lambda done, total: progress("measuring problems", done, total), limits.budget_s)
        entries = journal.entries
        complete = len(entries) == len(plan.items)
        path = output if complete else partial_path(output, len(entries), len(plan.items))
        written = complete or (limits.partial and bool(entries))
        if written and not finished:
            write_measurement_table(measurement_table(plan, entries.values()), path)
        if complete:
            journal_path(output).unlink()
    statuses = sum((entry.by_status for entry in entries.values()), Counter())
    return CollectReport(
        path if written else None, len(plan.items), len(entries), dict(sorted(statuses.items())), coordinator.unusable
    )


def _no_engine(plan: Plan, index: int) -> NoReturn:
    raise MeasurementError("a budget of 0 s measures nothing; no engine may start")


def _with_folder(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _gpus(devices: Devices) -> list[int]:
    try:
        import torch
        import triton  # noqa: F401
    except ImportError as e:
        raise MeasurementError(f"measuring needs torch and triton: {e}") from e
    count = torch.cuda.device_count()
    if not count:
        raise MeasurementError("there is no GPU on this machine")
    indices = list(range(count)) if devices == "all" else [int(d) for d in devices]
    if not indices or len(set(indices)) < len(indices):
        raise ConfigError(f"devices must be GPU indices, each once, or all; got {devices}")
    for device in indices:
        if not 0 <= device < count:
            raise MeasurementError(f"there is no GPU {device}; this machine has {count}")
    return indices


def _is_written(plan: Plan, journal: Journal, output: Path) -> bool:
    """Return whether the output is the table of a complete journal."""
    if not output.exists() or len(journal.entries) < len(plan.items):
        return False
    return is_measurement_table(output, measurement_table(plan, journal.entries.values()))


def _require_open(plan: Plan, output: Path) -> None:
    """Refuse an output that exists already, unless its journal is left: the run was killed at its very end."""
    if output.exists() and journal_path(output).exists():
        with Journal(journal_path(output), plan) as journal:
            if _is_written(plan, journal, output):
                return
    require_new(output)


def require_new(output: Path) -> None:
    """Check that a table is not written yet.

    Raises:
        DataError: the file exists.
    """
    if output.exists():
        raise DataError(f"{output} exists already; earlier results are never overwritten, choose another output")

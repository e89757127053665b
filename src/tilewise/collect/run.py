"""One collecting run, from a plan to a parquet file: compile ahead, measure, write.

What is measured lies in the journal beside the output until all is done; then the table is written and the journal
removed. Neither an output nor another run's journal is ever overwritten.
"""

from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NoReturn

from tilewise.collect.ahead import compile_ahead
from tilewise.collect.ck_kernels import Found
from tilewise.collect.coordinator import Coordinator
from tilewise.collect.engine import EngineFactory
from tilewise.collect.journal import Journal
from tilewise.collect.plan import Plan
from tilewise.collect.table import table, write_parquet
from tilewise.errors import ConfigError, DataError, MeasurementError, UnfinishedError

Progress = Callable[[str, int, int], None]  # what, how many are done, of how many
Devices = Sequence[int] | Literal["all"]


@dataclass(frozen=True)
class Limits:
    """How far a run goes.

    Attributes:
        budget_s: seconds of measuring in which problems may be begun, None for no end; 0 measures nothing.
        partial: write what there is where the budget ends before the problems do.

    Raises:
        ConfigError: `budget_s` is negative.
    """

    budget_s: float | None = None
    partial: bool = False

    def __post_init__(self) -> None:
        if self.budget_s is not None and not self.budget_s >= 0:
            raise ConfigError(f"budget_s must not be negative, got {self.budget_s}")


@dataclass(frozen=True)
class Report:
    """What a run left behind.

    Attributes:
        path: the table that was written, None where problems are left and no partial table was asked for.
        problems: number of problems in the plan.
        done: number of those that are measured.
        by_status: number of rows by status.
        given_up: why, by device that could not be used.
    """

    path: Path | None
    problems: int
    done: int
    by_status: dict[str, int]
    given_up: dict[int, str]

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
        """Number of problems that are not measured yet."""
        return self.problems - self.done

    def require_complete(self) -> None:
        """Do nothing where all problems are measured.

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
    """The journal lies beside the output until that is written."""
    return output.with_name(f"{output.name}.journal")


def partial_path(output: Path, done: int, problems: int) -> Path:
    """A table of some of the problems; its name says how many, and does not end like a table that folders take in."""
    return output.with_name(f"{output.name}.{done}-of-{problems}")


def collect_on_gpus(
    plan: Plan,
    output: Path,
    devices: Devices,
    jobs: int | None,
    progress: Progress,
    limits: Limits = Limits(),
) -> Report:
    """Compile the plan's programs on all cores, then :func:`collect` on this machine's GPUs.

    Args:
        plan: what to measure.
        output: the table to write.
        devices: GPU indices, or ``"all"``.
        jobs: compiling processes; None: one a core.
        progress: called as work goes on.
        limits: how far to go.

    Raises:
        MeasurementError: torch or triton is missing, or one of the devices is.
        DataError: see :func:`collect`; said before anything is compiled.
    """
    _require_free(output)
    if limits.budget_s == 0:  # nothing is measured: the journal may be read on any machine
        return collect(plan, output, _no_engine, [], progress, limits)
    indices = _gpus(devices)
    with Journal(_made(journal_path(output)), plan) as journal:  # a journal that cannot be used is said at once
        left = [i for i in range(len(plan.items)) if i not in journal.entries]
    failed = compile_ahead(plan, jobs, lambda done, of: progress("compiling", done, of), left)
    for config, error in failed.items():
        warnings.warn(f"{config} does not compile, its rows will say so: {error}", stacklevel=2)
    from tilewise.collect.gpu import GpuEngine

    return collect(plan, output, GpuEngine, indices, progress, limits)


def collect_from_libraries(
    plan: Plan, output: Path, found: Found, devices: Devices, progress: Progress, limits: Limits = Limits()
) -> Report:  # fmt: skip
    """:func:`collect` the kernels of CK Tile's libraries.

    Args:
        plan: what to measure.
        output: the table to write.
        found: the libraries of the plan's kernels.
        devices: GPU indices, or ``"all"``; libraries that take the host's memory need none to be there.
        progress: called as work goes on.
        limits: how far to go.

    Raises:
        ConfigError: a kernel of the plan has no library.
        MeasurementError: torch or triton is missing, or one of the devices is.
        DataError: see :func:`collect`.
    """
    if limits.budget_s == 0:
        return collect(plan, output, _no_engine, [], progress, limits)
    on_host = [0] if devices == "all" else devices
    indices = on_host if found.memory == "host" else _gpus(devices)
    return collect(plan, output, found.engine(plan), indices, progress, limits)


def collect(
    plan: Plan,
    output: Path,
    factory: EngineFactory,
    devices: Sequence[int],
    progress: Progress,
    limits: Limits = Limits(),
) -> Report:
    """Measure a plan, resuming from its journal if there is one, and write the table.

    Where the budget ends before the problems do, the journal stays, and the same call goes on with it.

    Raises:
        DataError: the output exists already, or the journal beside it cannot be used.
        MeasurementError: no worker can be started.
    """
    _require_free(output)
    with Journal(_made(journal_path(output)), plan) as journal:
        _require_free(output)  # another run may have finished before the journal was locked
        coordinator = Coordinator(plan, journal, factory, devices)
        coordinator.run(lambda done, of: progress("measuring problems", done, of), limits.budget_s)
        entries = journal.entries
        complete = len(entries) == len(plan.items)
        path = output if complete else partial_path(output, len(entries), len(plan.items))
        written = complete or (limits.partial and bool(entries))
        if written:
            write_parquet(table(plan, entries.values()), path)
        if complete:
            journal_path(output).unlink()
    statuses = sum((entry.by_status for entry in entries.values()), Counter())
    return Report(
        path if written else None, len(plan.items), len(entries), dict(sorted(statuses.items())), coordinator.given_up
    )


def _no_engine(plan: Plan, index: int) -> NoReturn:
    raise MeasurementError("nothing is to be measured")


def _made(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


def _gpus(devices: Devices) -> list[int]:
    try:
        import torch
        import triton  # noqa: F401
    except ImportError as e:
        raise MeasurementError(f"measuring needs torch and triton ({e}); install tilewise[gpu]") from e
    there = torch.cuda.device_count()
    if not there:
        raise MeasurementError("there is no GPU on this machine")
    indices = list(range(there)) if devices == "all" else [int(d) for d in devices]
    if not indices or len(set(indices)) < len(indices):
        raise ConfigError(f"devices must be GPU indices, each once, or all; got {devices}")
    for device in indices:
        if not 0 <= device < there:
            raise MeasurementError(f"there is no GPU {device}; this machine has {there}")
    return indices


def _require_free(output: Path) -> None:
    if output.exists():
        raise DataError(f"{output} exists already; earlier results are never overwritten, choose another output")

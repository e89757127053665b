"""One collecting run, from a plan to a parquet file: compile ahead, measure, write."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tilewise.collect.ahead import compile_ahead
from tilewise.collect.coordinator import Coordinator
from tilewise.collect.engine import EngineFactory
from tilewise.collect.journal import Journal
from tilewise.collect.plan import Plan
from tilewise.collect.table import write_parquet
from tilewise.errors import DataError, MeasurementError

Progress = Callable[[str, int, int], None]  # what, how many are done, of how many


@dataclass(frozen=True)
class Report:
    """What a run left behind."""

    path: Path
    rows: int
    valid: int
    by_status: dict[str, int]


def journal_path(output: Path) -> Path:
    """The journal lies beside the output until that is written."""
    return output.with_name(f"{output.name}.journal")


def collect_on_gpus(plan: Plan, output: Path, devices: Sequence[int], jobs: int | None, progress: Progress) -> Report:
    """Compile the plan's programs on all cores, then :func:`collect` on this machine's GPUs.

    Raises:
        MeasurementError: torch or triton is missing, or one of the devices is.
        DataError: see :func:`collect`; said before anything is compiled.
    """
    _require_free(output)
    _require_gpus(devices)
    failed = compile_ahead(plan, jobs, lambda done, of: progress("compiling", done, of))
    for config, error in failed.items():
        warnings.warn(f"{config} does not compile, its rows will say so: {error}", stacklevel=2)
    from tilewise.collect.gpu import GpuEngine

    return collect(plan, output, GpuEngine, devices, progress)


def _require_gpus(devices: Sequence[int]) -> None:
    try:
        import torch
        import triton  # noqa: F401
    except ImportError as e:
        raise MeasurementError(f"measuring needs torch and triton ({e}); install tilewise[gpu]") from e
    there = torch.cuda.device_count()
    for device in devices:
        if not 0 <= device < there:
            raise MeasurementError(f"there is no GPU {device}; this machine has {there}")


def _require_free(output: Path) -> None:
    if output.exists():
        raise DataError(f"{output} exists already; earlier results are never overwritten, choose another output")


def collect(plan: Plan, output: Path, factory: EngineFactory, devices: Sequence[int], progress: Progress) -> Report:
    """Measure a plan, resuming from its journal if there is one, and write the table.

    Raises:
        DataError: the output exists already, or the journal beside it belongs to another plan.
        MeasurementError: no worker can be started.
    """
    _require_free(output)
    output.parent.mkdir(parents=True, exist_ok=True)
    with Journal(journal_path(output), plan) as journal:
        Coordinator(plan, journal, factory, devices).run(lambda done, of: progress("measuring problems", done, of))
        rows = write_parquet(plan, journal.entries.values(), output)
        statuses = [k["status"] for entry in journal.entries.values() for k in entry.kernels]
    journal_path(output).unlink()
    return Report(output, rows, statuses.count("ok"), {s: statuses.count(s) for s in sorted(set(statuses))})

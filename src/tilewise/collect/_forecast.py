"""Forecast of a measuring run, without a GPU: supported pairs, why others are dropped, and the expected time."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tilewise.arch import HardwareProfile
from tilewise.collect._compile_ahead import compile_jobs
from tilewise.collect._journal import Journal
from tilewise.collect._plan import Plan, Timing
from tilewise.collect._run import Devices, journal_path
from tilewise.errors import DataError
from tilewise.ops import Problem

# A rough model of the cost of one pair, for plans without a similar earlier run; right within a factor of two.
SECONDS_PER_COMPILATION = 0.8  # of one core, for one set of binaries: 736 sets took 37 s on 16 cores
SECONDS_PER_PROBLEM = 0.03  # operands, reference, and a worker's answer
SECONDS_PER_PAIR = 1e-3  # the host's part: launching, capturing and replaying
SHARE_OF_PEAK = 0.3  # of the device's compute or bandwidth that the median kernel of a pool reaches
LAUNCH_MS = 0.005
PAUSE_S = 120.0  # a longer gap between two problems is a pause between two runs


@dataclass(frozen=True)
class Forecast:
    """Remaining work of a plan.

    Attributes:
        problems: number of problems in the plan.
        done: number of problems that the journal holds already.
        kernels: number of kernels in the pool.
        pairs: number of supported (problem, kernel) pairs left.
        dropped: number of pairs left that are not supported, by reason.
        orphans: number of problems left that no kernel supports.
        compilations: number of sets of binaries to compile; None where triton is not installed.
        compile_s: expected seconds of compiling with a cold cache; None where triton is not installed.
        measure_s: expected seconds of measuring.
        basis: the source of `measure_s`, in words.
    """

    problems: int
    done: int
    kernels: int
    pairs: int
    dropped: dict[str, int]
    orphans: int
    compilations: int | None
    compile_s: float | None
    measure_s: float
    basis: str

    def __str__(self) -> str:
        left = self.problems - self.done
        every = self.pairs + sum(self.dropped.values())
        each = self.kernels if every == left * self.kernels else f"{every / left:.0f} of {self.kernels}"
        lines = [
            f"{self.problems} problems, {self.done} of them done; {left} x {each} kernels left: "
            f"{self.pairs} supported pairs of {every}",
            *(f"  {count:>9}  dropped: {reason}" for reason, count in self.dropped.items()),
        ]
        if self.orphans:
            lines.append(f"  {self.orphans} problems are supported by no kernel")
        if self.compilations is None or self.compile_s is None:
            lines.append("compiling: unknown, as triton is not installed; install tilewise[gpu] for an estimate")
        else:
            duration = _duration(self.compile_s)
            lines.append(f"compiling: {self.compilations} sets of programs, about {duration}, less if cached")
        lines.append(f"measuring: about {_duration(self.measure_s)} ({self.basis})")
        return "\n".join(lines)


def forecast_plan(
    plan: Plan, output: Path, devices: Devices, jobs: int | None = None, like: Path | None = None
) -> Forecast:
    """Estimate the remaining work of collecting `plan` into `output`.

    Args:
        plan: the plan to measure.
        output: the table to write; its journal tells which problems are done, and how fast.
        devices: GPU indices, or ``"all"`` for those of this machine (one where it has none).
        jobs: number of compiling processes; None for one per core.
        like: an earlier table whose rate to expect.

    Raises:
        DataError: the journal or the earlier table cannot be used.
    """
    done: set[int] = set()
    rate, basis = None, ""
    if journal_path(output).exists():
        with Journal(journal_path(output), plan) as journal:
            done, rate = set(journal.entries), _rate_of_journal(journal)
            basis = f"at the journal's {rate or 0:.0f} pairs a second and GPU"
    if like is not None:
        rate = rate_of_table(like)
        basis = f"at {rate:.0f} pairs a second and GPU, as in {like}"
    left = [i for i in range(len(plan.items)) if i not in done]
    pairs, dropped = _count_pairs(plan, left)
    compilations = _count_compilations(plan, left)
    if rate:
        seconds = sum(pairs) / rate
    else:
        seconds = sum(_seconds(plan, plan.items[i].problem, n) for i, n in zip(left, pairs, strict=True))
        basis = "a rough model; name an earlier table with `like` for a better one"
    workers = max(1, min(_device_count(devices), len(left)))
    return Forecast(
        len(plan.items),
        len(done),
        len(plan.pool),
        sum(pairs),
        dict(dropped.most_common()),
        pairs.count(0),
        compilations,
        None if compilations is None else compilations * SECONDS_PER_COMPILATION / (jobs or os.cpu_count() or 1),
        seconds / workers,
        f"{basis}; {workers} GPU" + ("s" if workers > 1 else ""),
    )


def rate_of_table(path: Path) -> float:
    """Return the measured (supported) pairs per second and GPU of an earlier table.

    Raises:
        DataError: the file is not a measurement table, or has too few problems for a rate.
    """
    try:
        rows = pq.read_table(path, columns=["measured_at", "hw_uuid", "status"])
    except (OSError, pa.ArrowInvalid) as e:
        raise DataError(f"{path}: not a measurement table: {str(e).splitlines()[0]}") from e
    if rows.column_names != ["measured_at", "hw_uuid", "status"]:
        raise DataError(f"{path}: not a measurement table: measured_at, hw_uuid or status is missing")
    counts = Counter(
        (gpu, at)
        for gpu, at, status in zip(*(rows[n].to_pylist() for n in ("hw_uuid", "measured_at", "status")), strict=True)
        if at and status != "unsupported"
    )
    rate = _rate((gpu, at, n) for (gpu, at), n in counts.items())
    if rate is None:
        raise DataError(f"{path}: too few problems with a time for a rate; name a longer table")
    return rate


def _rate_of_journal(journal: Journal) -> float | None:
    return _rate(
        (e.device.hw_uuid, e.measured_at, sum(n for s, n in e.by_status.items() if s != "unsupported"))
        for e in journal.entries.values()
    )


def _rate(measured: Iterable[tuple[str | None, str, int]]) -> float | None:
    """Return the pairs per second and GPU, from (GPU, time, pairs) of each problem; pauses do not count."""
    by_gpu: dict[str | None, list[tuple[datetime, int]]] = {}
    for gpu, at, pairs in measured:
        by_gpu.setdefault(gpu, []).append((datetime.fromisoformat(at), pairs))
    pairs, busy = 0, 0.0
    for times in by_gpu.values():
        times.sort()
        for (before, _), (after, count) in pairwise(times):
            if (gap := (after - before).total_seconds()) < PAUSE_S:
                pairs, busy = pairs + count, busy + gap
    return pairs / busy if pairs and busy else None


def _count_pairs(plan: Plan, which: Sequence[int]) -> tuple[list[int], Counter[str]]:
    """Return the supported pairs per problem, and the number of dropped pairs by their first reason."""
    pool = plan.pool
    columns = SimpleNamespace(**pool.columns)  # built once: the rules take all kernels at a time
    pairs, dropped = [], Counter[str]()
    for index in which:
        remaining = plan.kernel_mask(index)
        for broken, reason in pool.backend.checks(columns, plan.items[index].problem, pool.variant, pool.dtype):
            if count := int(np.count_nonzero(remaining & broken)):
                dropped[reason] += count
                remaining &= ~np.asarray(broken)
        pairs.append(int(np.count_nonzero(remaining)))
    return pairs, dropped


def _device_count(devices: Devices) -> int:
    if devices != "all":
        return len(devices)
    try:
        import torch
    except ImportError:
        return 1
    return int(torch.cuda.device_count()) or 1


def _count_compilations(plan: Plan, left: Sequence[int]) -> int | None:
    if not any(source.compiled_here for source in plan.pool.backend.sources):
        return 0
    try:
        return len(compile_jobs(plan, left))
    except ImportError:
        return None


def _seconds(plan: Plan, problem: Problem, pairs: int) -> float:
    """Return the seconds of one problem by the rough model, in which every launch takes as long as the median one."""
    arch, dtype = plan.arch, plan.target.dtype
    compute_ms = problem.flops / (SHARE_OF_PEAK * arch.peak(dtype)) / 1e9
    memory_ms = problem.min_bytes(dtype) / (SHARE_OF_PEAK * arch.dram_gb_s) / 1e6
    launch_ms = max(compute_ms, memory_ms) + LAUNCH_MS
    return SECONDS_PER_PROBLEM + pairs * float(pair_seconds(np.array(launch_ms), plan.timing, arch))


def pair_seconds(launch_ms: np.ndarray, timing: Timing, arch: HardwareProfile) -> np.ndarray:
    """Estimate the seconds of measuring one kernel on one problem: the host's part, a launch, its check, its samples.

    Each launch includes clearing the cache. A problem adds :data:`SECONDS_PER_PROBLEM`.

    Args:
        launch_ms: milliseconds per launch, of any shape.
        timing: the settings.
        arch: the device.

    Returns:
        Seconds, of the same shape.
    """
    sample_ms = np.maximum(launch_ms, np.minimum(timing.window_us / 1e3, timing.max_unroll * launch_ms))
    samples = np.clip(timing.budget_ms / sample_ms, timing.min_rounds, timing.rounds)
    clear_ms = 2 * arch.l2_bytes / arch.dram_gb_s / 1e6
    gpu_ms = 2 * launch_ms + samples * sample_ms + (2 + samples) * clear_ms
    seconds: np.ndarray = SECONDS_PER_PAIR + gpu_ms / 1e3
    return seconds


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"

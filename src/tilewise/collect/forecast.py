"""What a plan would do, without a GPU: the pairs, why others are dropped, and how long it may take."""

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
from tilewise.collect.ahead import jobs as compile_jobs
from tilewise.collect.journal import Journal
from tilewise.collect.plan import Plan, Timing
from tilewise.collect.run import Devices, journal_path
from tilewise.errors import DataError
from tilewise.ops import Problem

# A rough model of what one pair costs, for plans with nothing alike measured before; right within a factor of two.
PROGRAM_S = 0.8  # a core compiles one set of programs: 736 took 37 s on 16 cores
PROBLEM_S = 0.03  # operands, the reference, and a worker's answer
PAIR_S = 1e-3  # the host's part: launching, capturing and replaying
SHARE = 0.3  # of the device's peak compute or bandwidth, which kernels of a pool reach in the middle
LAUNCH_MS = 0.005
PAUSE_S = 120.0  # a longer gap between two problems is a pause between two runs, and no measuring


@dataclass(frozen=True)
class Forecast:
    """What is left to do of a plan.

    Attributes:
        problems: number of problems in the plan.
        done: number of those that the journal holds already.
        kernels: number of kernels in the pool.
        pairs: supported (problem, kernel) pairs left.
        dropped: pairs left that are not supported, by reason.
        orphans: problems left that no kernel supports.
        programs: sets of programs to compile; None where triton is not installed.
        compile_s: expected seconds of compiling with a cold cache; None likewise.
        measure_s: expected seconds of measuring.
        basis: where `measure_s` is from.
    """

    problems: int
    done: int
    kernels: int
    pairs: int
    dropped: dict[str, int]
    orphans: int
    programs: int | None
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
        if self.programs is None or self.compile_s is None:
            lines.append("compiling: triton is not installed here, so nobody can say how much")
        else:
            took = _duration(self.compile_s)
            lines.append(f"compiling: {self.programs} sets of programs, about {took}, less if cached")
        lines.append(f"measuring: about {_duration(self.measure_s)} ({self.basis})")
        return "\n".join(lines)


def forecast(plan: Plan, output: Path, devices: Devices, jobs: int | None = None, like: Path | None = None) -> Forecast:
    """What collecting `plan` into `output` would do now.

    Args:
        plan: what to measure.
        output: the table to write; its journal tells what is done, and how fast.
        devices: GPU indices, or ``"all"``: those of this machine, or one where it has none.
        jobs: compiling processes; None: one a core.
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
    pairs, dropped = _count(plan, left)
    programs = _programs(plan, left)
    if rate:
        seconds = sum(pairs) / rate
    else:
        seconds = sum(_seconds(plan, plan.items[i].problem, n) for i, n in zip(left, pairs, strict=True))
        basis = "a rough model; name an earlier table with `like` for a better one"
    workers = max(1, min(_number(devices), len(left)))
    return Forecast(
        len(plan.items),
        len(done),
        len(plan.pool),
        sum(pairs),
        dict(dropped.most_common()),
        pairs.count(0),
        programs,
        None if programs is None else programs * PROGRAM_S / (jobs or os.cpu_count() or 1),
        seconds / workers,
        f"{basis}; {workers} GPU" + ("s" if workers > 1 else ""),
    )


def rate_of_table(path: Path) -> float:
    """Measured pairs (those that were supported) a second and GPU in an earlier table.

    Raises:
        DataError: the file is no measurement table, or too short to tell.
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
        raise DataError(f"{path}: too few problems with a time to tell a rate from")
    return rate


def _rate_of_journal(journal: Journal) -> float | None:
    return _rate(
        (e.device.hw_uuid, e.measured_at, sum(n for s, n in e.by_status.items() if s != "unsupported"))
        for e in journal.entries.values()
    )


def _rate(measured: Iterable[tuple[str | None, str, int]]) -> float | None:
    """Pairs a second and GPU, from (GPU, time, pairs) of the problems; pauses do not count."""
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


def _count(plan: Plan, which: Sequence[int]) -> tuple[list[int], Counter[str]]:
    """Supported pairs that are asked for of each problem, and the others by the first reason that drops them."""
    columns = SimpleNamespace(**plan.pool.columns)  # once: the rules take all kernels at a time
    pairs, dropped = [], Counter[str]()
    for index in which:
        there = plan.chosen(index)
        for broken, reason in plan.pool.backend.checks(columns, plan.items[index].problem, plan.target.variant):
            if count := int(np.count_nonzero(there & broken)):
                dropped[reason] += count
                there &= ~np.asarray(broken)
        pairs.append(int(np.count_nonzero(there)))
    return pairs, dropped


def _number(devices: Devices) -> int:
    if devices != "all":
        return len(devices)
    try:
        import torch
    except ImportError:
        return 1
    return int(torch.cuda.device_count()) or 1


def _programs(plan: Plan, left: Sequence[int]) -> int | None:
    if plan.pool.backend.name != "triton":  # others come compiled
        return 0
    try:
        return len(compile_jobs(plan, left))
    except ImportError:
        return None


def _seconds(plan: Plan, problem: Problem, pairs: int) -> float:
    """The rough model: every launch takes what kernels take in the middle."""
    arch, dtype = plan.arch, plan.target.dtype
    compute_ms = problem.flops / (SHARE * arch.peak(dtype)) / 1e9
    memory_ms = problem.min_bytes(dtype) / (SHARE * arch.dram_gb_s) / 1e6
    launch_ms = max(compute_ms, memory_ms) + LAUNCH_MS
    return PROBLEM_S + pairs * float(pair_seconds(np.array(launch_ms), plan.timing, arch))


def pair_seconds(launch_ms: np.ndarray, timing: Timing, arch: HardwareProfile) -> np.ndarray:
    """What measuring kernels takes that need so long a launch: the host's part, a launch, its check and its samples.

    Each launch comes after clearing the cache. A problem adds :data:`PROBLEM_S`.
    """
    sample_ms = np.maximum(launch_ms, np.minimum(timing.window_us / 1e3, timing.max_unroll * launch_ms))
    samples = np.clip(timing.budget_ms / sample_ms, timing.min_rounds, timing.rounds)
    clear_ms = 2 * arch.l2_bytes / arch.dram_gb_s / 1e6
    gpu_ms = 2 * launch_ms + samples * sample_ms + (2 + samples) * clear_ms
    seconds: np.ndarray = PAIR_S + gpu_ms / 1e3
    return seconds


def _duration(seconds: float) -> str:
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours} h {minutes:02d} min"
    return f"{minutes} min {rest:02d} s" if minutes else f"{rest} s"

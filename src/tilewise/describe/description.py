"""What a measurement table holds: how much, what failed and why, how steady, and how well a second run agrees."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd

from tilewise.data.columns import TARGET
from tilewise.data.labels import judge_runs, labelled
from tilewise.data.repeats import repeated_pairs
from tilewise.data.rows import problem_index, problems_of
from tilewise.data.schema import parquet_files, read_measurements
from tilewise.data.splits import group_keys, holdout_mask
from tilewise.ops import GemmProblem, GroupedConvProblem, Problem, Target

LONG_MS = 0.02  # below, what a launch costs is a good part of the time
PAUSE_S = 60.0  # without a row for so long, a run had been stopped

_NUMBER = r"(?<!\w)\d[\d.,]*(e[+-]?\d+)?(?!\w)"  # not the ones inside a word, such as 1x1

Floats = npt.NDArray[np.float64]

# Kinds of problems, in the order in which they are listed.
KINDS = {
    "grouped_conv": ("dense filter", "pointwise", "grouped", "depthwise", "3D"),
    "gemm": ("up to 16 rows or columns", "up to 256", "larger"),
}


@dataclass(frozen=True)
class Run:
    """One collecting run of a target, as far as the table knows it."""

    run_id: str
    problems: int
    rows: int
    valid: int
    rate: float | None  # valid rows a second of measuring, all its devices together; None where times are unknown
    spread: float
    devices: tuple[str, ...]  # distinct GPUs, e.g. "4 x NVIDIA H200"
    libraries: tuple[str, ...]
    measured_on: str  # the first day, or "-"


@dataclass(frozen=True)
class Repeats:
    """How well a second run agrees, over the problems that have one."""

    problems: int
    changed: float  # share of problems whose fastest kernel is another one
    cost: float  # mean efficiency lost by picking by one run and judging by the other
    p10: float  # tenth percentile of the efficiency kept
    least: float
    apart: float  # median over (problem, kernel) of |latency of one run / of the other - 1|
    apart_long: float  # the same above LONG_MS


@dataclass(frozen=True)
class Description:
    """What a table holds of one target.

    Attributes:
        problems: a row a problem, see :func:`problem_table`.
        efficiency: (problems, kernels) TFLOPS / the problem's best, 0 where there is no valid row.
        kernels: names of the columns of `efficiency`.
        failures: columns `status`, `reason`, `rows`, the most frequent first; failed and unsupported rows.
        samples: `latency_ms` and `spread` of each valid row that has one.
        pairs: :func:`tilewise.data.repeats.repeated_pairs`.
    """

    target: Target
    problems: pd.DataFrame
    efficiency: Floats
    kernels: tuple[str, ...]
    by_status: dict[str, int]
    failures: pd.DataFrame
    samples: pd.DataFrame
    runs: tuple[Run, ...]
    repeats: Repeats | None
    pairs: pd.DataFrame

    @property
    def rows(self) -> int:
        """All rows, of any status and run."""
        return sum(self.by_status.values())

    def spread(self, *, above_ms: float = 0.0) -> float:
        """Median of (p80 - p20) / p50 over the valid rows that take at least `above_ms`; NaN without any."""
        return float(self.samples.loc[self.samples["latency_ms"] >= above_ms, "spread"].median())


def describe_all(path: Path, fraction: float) -> Iterator[Description]:
    """A description of each target in a parquet file or a folder of them, in the order of the names.

    Args:
        path: file or folder.
        fraction: of the problems, those held out for validation.

    Raises:
        DataError: see :func:`tilewise.data.schema.read_measurements`.
    """
    names = [c.name for c in TARGET]
    tables: dict[Target, list[pd.DataFrame]] = {}
    for file in parquet_files(path):
        for key, rows in read_measurements(file).groupby(names, sort=False):
            tables.setdefault(Target(*map(str, key)), []).append(rows)
    for target in sorted(tables, key=lambda t: t.name):
        yield describe(pd.concat(tables.pop(target), ignore_index=True), target, fraction)


def describe(frame: pd.DataFrame, target: Target, fraction: float) -> Description:
    """Describe the rows of one target.

    Args:
        frame: a measurement table with rows of `target` only.
        target: theirs.
        fraction: of the problems, those held out for validation.
    """
    labels = labelled(frame, target.op)
    number = problem_index(labels, target.op)
    efficiency, kernels = efficiencies(labels, number)
    pairs = repeated_pairs(frame, target.op)
    return Description(
        target,
        problem_table(labels, number, target, fraction),
        efficiency,
        kernels,
        {str(k): int(v) for k, v in frame["status"].value_counts().items()},
        failures(frame),
        samples(frame),
        tuple(_run(str(run_id), rows, target.op) for run_id, rows in frame.groupby("run_id", sort=True)),
        repeats(pairs, judge_runs(frame, target.op)),
        pairs,
    )


def problem_table(labels: pd.DataFrame, number: npt.NDArray[np.int64], target: Target, fraction: float) -> pd.DataFrame:
    """A row a problem: what it is, and its fastest kernel.

    Args:
        labels: a row for each problem and kernel.
        number: (rows,) each row's problem.
        target: theirs.
        fraction: of the problems, those held out for validation.

    Returns:
        `kind`, `flops`, `intensity` (FLOP a byte, each tensor once), `m`, `n`, `k` (of the implicit product, without
        its batch), `validation`; of the fastest kernel `kernel_name`, `pipeline`, `tile_m`, `tile_n`, `tile_k`,
        `latency_ms` and `tflops`, which are missing where no kernel is valid.
    """
    problems = problems_of(labels, target)
    first = labels.groupby(number).head(1)
    held = holdout_mask(target.op, group_keys(target.op, first), fraction)
    dims = [p.implicit_gemm(target.variant) for p in problems]
    shapes = pd.DataFrame(
        {
            "kind": [kind_of(p) for p in problems],
            "flops": [float(p.flops) for p in problems],
            "intensity": [p.flops / p.min_bytes(target.dtype) for p in problems],
            **{n: [int(getattr(d, n)) for d in dims] for n in ("m", "n", "k")},
            "validation": held,
        }
    )
    valid = labels.assign(problem=number)[labels["is_valid"].to_numpy()]
    best = valid.loc[valid.groupby("problem")["tflops"].idxmax()].set_index("problem")
    columns = ["kernel_name", "pipeline", "tile_m", "tile_n", "tile_k", "latency_ms", "tflops"]
    return shapes.join(best[columns])


def efficiencies(labels: pd.DataFrame, number: npt.NDArray[np.int64]) -> tuple[Floats, tuple[str, ...]]:
    """(problems, kernels) TFLOPS / the problem's best, 0 without a valid row; and the kernels' names, sorted."""
    names, kernel = np.unique(labels["kernel_name"].to_numpy(dtype=str), return_inverse=True)
    matrix = np.zeros((int(number.max()) + 1, len(names)))
    valid = labels["is_valid"].to_numpy()
    matrix[number[valid], kernel[valid]] = labels["tflops"].to_numpy()[valid]
    best = matrix.max(axis=1, keepdims=True)
    return matrix / np.where(best > 0, best, 1.0), tuple(str(n) for n in names)


def best_subset(efficiency: Floats, limit: int) -> Floats:
    """Mean over the problems of the best efficiency that the first 1, 2, ... `limit` kernels reach, chosen greedily."""
    reached = np.zeros(len(efficiency))
    means: list[float] = []
    while len(means) < min(limit, efficiency.shape[1]):
        chosen = int(np.maximum(efficiency, reached[:, None]).mean(axis=0).argmax())
        reached = np.maximum(reached, efficiency[:, chosen])
        means.append(float(reached.mean()))
    return np.array(means)


def failures(frame: pd.DataFrame) -> pd.DataFrame:
    """How many rows are not ok, by `status` and `reason`; numbers in a reason are written as #."""
    bad = frame[~frame["is_valid"].to_numpy()]
    reason = bad["error"].fillna("").astype(str).str.replace(_NUMBER, "#", regex=True)
    counts = pd.DataFrame({"status": bad["status"], "reason": reason}).value_counts().reset_index(name="rows")
    return counts.sort_values(["rows", "status", "reason"], ascending=[False, True, True], ignore_index=True)


def samples(frame: pd.DataFrame) -> pd.DataFrame:
    """`latency_ms` and `spread`, (p80 - p20) / p50, of the valid rows whose percentiles are known."""
    valid = frame[frame["is_valid"].to_numpy()]
    spread = (valid["latency_p80_ms"] - valid["latency_p20_ms"]) / valid["latency_ms"]
    found = pd.DataFrame({"latency_ms": valid["latency_ms"], "spread": spread})
    return found[found["spread"].notna()].reset_index(drop=True)


def rate(rows: pd.DataFrame) -> float | None:
    """Valid measurements a second of one run, without the pauses of one that was stopped and resumed."""
    times = pd.to_datetime(rows["measured_at"].dropna(), utc=True, format="ISO8601").sort_values()
    gaps = times.diff().dt.total_seconds()
    busy = float(gaps[gaps < PAUSE_S].sum())
    return float(rows["is_valid"].sum()) / busy if busy else None


def repeats(pairs: pd.DataFrame, judged: pd.DataFrame) -> Repeats | None:
    """Sum up what :func:`~tilewise.data.repeats.repeated_pairs` and :func:`~tilewise.data.labels.judge_runs` found.

    None where nothing was measured twice.
    """
    if not len(pairs):
        return None
    apart = (pairs["latency_ms_again"] / pairs["latency_ms"] - 1).abs()
    kept = judged["efficiency"]
    return Repeats(
        len(judged),
        1 - float(judged["same"].mean()),
        1 - float(kept.mean()),
        float(kept.quantile(0.1)),
        float(kept.min()),
        float(apart.median()),
        float(apart[pairs["latency_ms"] >= LONG_MS].median()),
    )


def kind_of(problem: Problem) -> str:
    """One of :data:`KINDS` of the problem's op, or the op itself where it has none."""
    if isinstance(problem, GroupedConvProblem):
        if problem.ndim == 3:
            return "3D"
        if problem.G > 1:
            return "depthwise" if problem.G == problem.C else "grouped"
        return "pointwise" if problem.Y * problem.X == 1 else "dense filter"
    if isinstance(problem, GemmProblem):
        narrow, wider, large = KINDS["gemm"]
        least = min(problem.M, problem.N)
        return narrow if least <= 16 else wider if least <= 256 else large
    return problem.op


def _run(run_id: str, rows: pd.DataFrame, op: str) -> Run:
    devices = rows[["hw_device", "hw_uuid"]].drop_duplicates().dropna(subset="hw_device")["hw_device"].value_counts()
    at = rows["measured_at"].dropna()
    return Run(
        run_id,
        int(problem_index(rows, op).max()) + 1,
        len(rows),
        int(rows["is_valid"].sum()),
        rate(rows),
        float(samples(rows)["spread"].median()),
        tuple(f"{n} x {name}" if n > 1 else str(name) for name, n in devices.items()),
        tuple(sorted(map(str, rows["libraries"].dropna().unique()))),
        str(at.min())[:10] if len(at) else "-",
    )

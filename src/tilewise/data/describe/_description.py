"""Summary of a measurement table: its size, failures with reasons, noise, and agreement with a second run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import numpy.typing as npt
import pandas as pd

from tilewise.data._backends import backend_of_frame
from tilewise.data._columns import TARGET_COLUMNS
from tilewise.data._labels import judge_runs, labelled
from tilewise.data._repeats import repeated_pairs
from tilewise.data._rows import problem_index, problems_of
from tilewise.data._schema import parquet_files, read_measurements, targets_in
from tilewise.data._target_table import TargetTable
from tilewise.errors import DataError
from tilewise.ops import GemmProblem, GroupedConvProblem, Problem, Target

LONG_MS = 0.02  # shorter times consist to a large part of the cost of a launch
PAUSE_S = 60.0  # a longer gap between rows means that the run was stopped

_NUMBER = r"(?<!\w)\d[\d.,]*(e[+-]?\d+)?(?!\w)"  # except within a word, such as 1x1

Progress = Callable[[str, int, int], None]
Floats = npt.NDArray[np.float64]

# Kinds of problems, in the order of tables and legends.
KINDS = {
    "grouped_conv": ("dense filter", "pointwise", "grouped", "depthwise", "3D"),
    "gemm": ("up to 16 rows or columns", "up to 256", "larger"),
}


@dataclass(frozen=True)
class Run:
    """A collecting run of a target.

    Attributes:
        run_id: its name.
        problems, rows, valid: number of problems, rows and valid rows.
        rate: valid rows per second of measuring, all devices together; None if times are unknown.
        spread: median of (p80 - p20) / p50 over the valid rows.
        devices: distinct GPUs, e.g. "4 x NVIDIA H200".
        libraries: versions of the libraries that build the kernels.
        measured_on: the first day, or "-".
    """

    run_id: str
    problems: int
    rows: int
    valid: int
    rate: float | None
    spread: float
    devices: tuple[str, ...]
    libraries: tuple[str, ...]
    measured_on: str


@dataclass(frozen=True)
class Repeats:
    """Agreement between runs, over the problems that several runs measured.

    Attributes:
        problems: number of these problems.
        changed: share of problems whose fastest kernel differs between runs.
        cost: mean efficiency lost by picking by one run and judging by the others.
        p10, least: tenth percentile and minimum of the efficiency of such picks.
        difference: median over (problem, kernel) of |latency of one run / of the other - 1|.
        difference_long: the same for latencies of at least LONG_MS.
    """

    problems: int
    changed: float
    cost: float
    p10: float
    least: float
    difference: float
    difference_long: float


@dataclass(frozen=True)
class Description:
    """Summary of the rows of one target.

    Attributes:
        target: target of the rows.
        problems: one row per problem, see :func:`problem_table`.
        efficiency: TFLOPS / the problem's best, of shape (problems, kernels); 0 without a valid row.
        kernels: names of the columns of `efficiency`.
        by_status: number of rows by status.
        failures: columns `status`, `reason` and `rows` of failed and unsupported rows, the most frequent first.
        samples: `latency_ms` and `spread` of each valid row with known percentiles.
        runs: the collecting runs.
        repeats: agreement between runs; None if no problem was measured twice.
        pairs: measurements by two runs, see :func:`tilewise.data._repeats.repeated_pairs`.
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
        """Number of rows of any status and run."""
        return sum(self.by_status.values())

    def spread(self, *, above_ms: float = 0.0) -> float:
        """Return the median of (p80 - p20) / p50 over the valid rows of at least `above_ms`; NaN without such rows."""
        return float(self.samples.loc[self.samples["latency_ms"] >= above_ms, "spread"].median())


def describe_tables(
    path: Path, fraction: float, only: Target | None = None, progress: Progress | None = None
) -> Iterator[Description]:
    """Describe each target in a parquet file or a folder of them, in the order of the names.

    Args:
        path: file or folder.
        fraction: share of the group keys that is held out for validation.
        only: describe this target; files without its rows are not read.
        progress: called with a step, and with how many of how many files are done.

    Raises:
        DataError: see :func:`tilewise.data.read_measurements`; or the tables have no rows of `only`.
    """
    names = [c.name for c in TARGET_COLUMNS]
    found = {file: targets_in(file) for file in parquet_files(path)}
    files = [file for file, targets in found.items() if only is None or not targets or only.name in targets]
    tables: dict[Target, list[pd.DataFrame]] = {}
    for done, file in enumerate(files, 1):
        for key, rows in read_measurements(file).groupby(names, sort=False):
            target = Target(*map(str, key))
            if only in (None, target):
                tables.setdefault(target, []).append(rows)
        if progress:
            progress("reading", done, len(files))
    if only is not None and not tables:
        others = ", ".join(sorted(frozenset().union(*found.values())))
        raise DataError(f"{path}: no rows of {only.name}, but of {others or 'no target'}; name one of them as target")
    for target in sorted(tables, key=lambda t: t.name):
        yield describe(pd.concat(tables.pop(target), ignore_index=True), target, fraction)


def describe(frame: pd.DataFrame, target: Target, fraction: float) -> Description:
    """Describe the rows of one target.

    Args:
        frame: a measurement table with rows of `target` only.
        target: target of all rows.
        fraction: share of the group keys that is held out for validation.
    """
    current = TargetTable.of(frame, target).rows
    labels = labelled(current, target.op)
    number = problem_index(labels, target.op)
    efficiency, kernels = efficiencies(labels, number)
    pairs = repeated_pairs(current, target.op)
    return Description(
        target,
        problem_table(labels, number, target, fraction),
        efficiency,
        kernels,
        {str(k): int(v) for k, v in frame["status"].value_counts().items()},
        failures(frame),
        samples(frame),
        tuple(_run(str(run_id), rows, target.op) for run_id, rows in frame.groupby("run_id", sort=True)),
        repeats(pairs, judge_runs(current, target.op)),
        pairs,
    )


def problem_table(labels: pd.DataFrame, number: npt.NDArray[np.int64], target: Target, fraction: float) -> pd.DataFrame:
    """Return one row per problem, with its properties and its fastest kernel.

    Args:
        labels: one row per problem and kernel.
        number: number of each row's problem, of shape (rows,).
        target: target of all rows.
        fraction: share of the group keys that is held out for validation.

    Returns:
        Columns `kind`, `flops`, `intensity` (FLOP per byte, counting each tensor once), `m`, `n`, `k` (of the implicit
        product, without its batch) and `validation`. The fastest kernel has `kernel_name`, `pipeline`, `tile_m`,
        `tile_n`, `tile_k`, `latency_ms` and `tflops`; they are empty if no kernel is valid.
    """
    problems = problems_of(labels, target)
    first = labels.groupby(number).head(1)
    is_holdout = TargetTable(target, first).is_holdout(fraction)
    dims = [p.implicit_gemm(target.variant) for p in problems]
    shapes = pd.DataFrame(
        {
            "kind": [kind_of(p) for p in problems],
            "flops": [float(p.flops) for p in problems],
            "intensity": [p.flops / p.min_bytes(target.dtype) for p in problems],
            **{n: [int(getattr(d, n)) for d in dims] for n in ("m", "n", "k")},
            "validation": is_holdout,
        }
    )
    valid = labels.assign(problem=number)[labels["is_valid"].to_numpy()]
    best = valid.loc[valid.groupby("problem")["tflops"].idxmax()].set_index("problem")
    return shapes.join(best[["kernel_name", "latency_ms", "tflops"]].join(_tiles(best)))


def _tiles(rows: pd.DataFrame) -> pd.DataFrame:
    """Return pipeline and tile of each row's kernel; nominal ones for kernels that are known by name only.

    Kernels of an op of the user's own have neither: their cells are empty.
    """
    backend = backend_of_frame(rows)
    kernels = SimpleNamespace(**{name: rows[name].to_numpy() for name in backend.column_kinds()})
    columns = vars(backend.common_columns(kernels))
    names = ("pipeline", "tile_m", "tile_n", "tile_k")
    return pd.DataFrame({name: columns.get(name, np.nan) for name in names}, index=rows.index)


def efficiencies(labels: pd.DataFrame, number: npt.NDArray[np.int64]) -> tuple[Floats, tuple[str, ...]]:
    """Return TFLOPS / the problem's best, and the sorted names of the kernels.

    Returns:
        An array of shape (problems, kernels), 0 without a valid row; and the names of its columns.
    """
    names, kernel = np.unique(labels["kernel_name"].to_numpy(dtype=str), return_inverse=True)
    matrix = np.zeros((int(number.max()) + 1, len(names)))
    valid = labels["is_valid"].to_numpy()
    matrix[number[valid], kernel[valid]] = labels["tflops"].to_numpy()[valid]
    best = matrix.max(axis=1, keepdims=True)
    return matrix / np.where(best > 0, best, 1.0), tuple(str(n) for n in names)


def best_subset(efficiency: Floats, limit: int) -> Floats:
    """Return the mean over the problems of the best efficiency among k kernels, for k = 1 to `limit`, chosen greedily.

    Args:
        efficiency: array of shape (problems, kernels).
        limit: the largest k; fewer if there are fewer kernels.
    """
    reached = np.zeros(len(efficiency))
    means: list[float] = []
    while len(means) < min(limit, efficiency.shape[1]):
        chosen = int(np.maximum(efficiency, reached[:, None]).mean(axis=0).argmax())
        reached = np.maximum(reached, efficiency[:, chosen])
        means.append(float(reached.mean()))
    return np.array(means)


def failures(frame: pd.DataFrame) -> pd.DataFrame:
    """Count the rows that are not ok by `status` and `reason`; numbers in a reason are replaced by #."""
    bad = frame[~frame["is_valid"].to_numpy()]
    reason = bad["error"].fillna("").astype(str).str.replace(_NUMBER, "#", regex=True)
    counts = pd.DataFrame({"status": bad["status"], "reason": reason}).value_counts().reset_index(name="rows")
    return counts.sort_values(["rows", "status", "reason"], ascending=[False, True, True], ignore_index=True)


def samples(frame: pd.DataFrame) -> pd.DataFrame:
    """Return `latency_ms` and `spread`, which is (p80 - p20) / p50, of the valid rows with known percentiles."""
    valid = frame[frame["is_valid"].to_numpy()]
    spread = (valid["latency_p80_ms"] - valid["latency_p20_ms"]) / valid["latency_ms"]
    found = pd.DataFrame({"latency_ms": valid["latency_ms"], "spread": spread})
    return found[found["spread"].notna()].reset_index(drop=True)


def rate(rows: pd.DataFrame) -> float | None:
    """Return the valid measurements per second of one run, excluding pauses; None if times are unknown."""
    times = pd.to_datetime(rows["measured_at"].dropna(), utc=True, format="ISO8601").sort_values()
    gaps = times.diff().dt.total_seconds()
    busy = float(gaps[gaps < PAUSE_S].sum())
    return float(rows["is_valid"].sum()) / busy if busy else None


def repeats(pairs: pd.DataFrame, judged: pd.DataFrame) -> Repeats | None:
    """Summarize the agreement between runs; return None if nothing was measured twice.

    Args:
        pairs: result of :func:`~tilewise.data._repeats.repeated_pairs`.
        judged: result of :func:`~tilewise.data.judge_runs`.
    """
    if not len(pairs):
        return None
    difference = (pairs["latency_ms_again"] / pairs["latency_ms"] - 1).abs()
    efficiency = judged["efficiency"]
    return Repeats(
        len(judged),
        1 - float(judged["same"].mean()),
        1 - float(efficiency.mean()),
        float(efficiency.quantile(0.1)),
        float(efficiency.min()),
        float(difference.median()),
        float(difference[pairs["latency_ms"] >= LONG_MS].median()),
    )


def kind_of(problem: Problem) -> str:
    """Return the problem's kind, one of :data:`KINDS`; for other ops, the op itself."""
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

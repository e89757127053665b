"""Replay table: a measurement table that stands in for a GPU.

:class:`ReplayTable` answers single questions (search, fallback, validation). :func:`replay_engine` makes the engine
with which :func:`tilewise.collect.collect_with_engine` runs a plan. A pair that was never measured is a failure that
says so. Needs pyarrow and NumPy only, like everything that
measures.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property, partial, reduce
from pathlib import Path
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tilewise.arch import HardwareProfile, load_arch
from tilewise.collect._outcomes import Outcome, Samples
from tilewise.collect._plan import Item, Plan, Timing
from tilewise.collect.engines._engine import BeginCallback, Device, EngineFactory
from tilewise.data import PROGRAMS_COLUMN, TARGET_COLUMNS
from tilewise.errors import DataError
from tilewise.kernels import BACKEND_COLUMN, FILL, Backend, FieldKind, KernelBase, Pool, backend_of_columns, together
from tilewise.ops import OPS, Problem, Target

_RESULTS = (
    *("status", "error", "latency_ms", "latency_min_ms", "latency_p20_ms", "latency_p80_ms"),
    *("repeats", "unrolled", "sm_clock_mhz", "origin", "hw_device", PROGRAMS_COLUMN),
)
_NEEDED = ("kernel_name", "status", "latency_ms")


class Oracle(NamedTuple):
    """Fastest measured kernel of a problem, with its time in ms."""

    kernel_name: str
    latency_ms: float


class ReplayTable:
    """Measurements of the kernels and problems of one target, read from a table.

    If a problem and kernel have several rows, those of the latest version of the programs count: the first valid one,
    or else the first.

    Args:
        target: the target of the rows.
        columns: the table's columns, as lists by name.
        source: names the table in errors.
    """

    def __init__(self, target: Target, columns: Mapping[str, list[Any]], source: str) -> None:
        self.target = target
        self.source = source
        self._columns = {n: values for n, values in columns.items() if n in _RESULTS}
        self._rows: dict[Problem, dict[str, int]] = {}  # row number by kernel name
        self._kernels: dict[str, KernelBase] = {}
        backend, names = backend_of_columns(columns, columns.get(BACKEND_COLUMN, ())), OPS[target.op].column_names()
        problems: dict[tuple[Any, ...], Problem] = {}
        status, kernel_columns = columns["status"], backend.column_kinds()
        versions = columns.get(PROGRAMS_COLUMN, [None] * len(status))
        rank = [(version or 1, outcome == "ok") for version, outcome in zip(versions, status, strict=True)]
        for row, (name, *key) in enumerate(zip(*(columns[n] for n in ("kernel_name", *names)), strict=True)):
            problem = problems.get(tuple(key))
            if problem is None:
                problem = problems[tuple(key)] = OPS[target.op](**dict(zip(names, key, strict=True)))
            if name not in self._kernels:
                self._kernels[name] = backend.read_kernel({n: columns[n][row] for n in kernel_columns})
            row_of = self._rows.setdefault(problem, {})
            if name not in row_of or rank[row] > rank[row_of[name]]:
                row_of[name] = row

    @classmethod
    def load(cls, path: str | Path, target: Target) -> Self:
        """Read a parquet file, or all parquet files of a folder.

        Raises:
            DataError: a file cannot be read, lacks a column or holds an invalid row; or no file has a row of `target`.
        """
        path = Path(path)
        files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
        try:
            tables = [t for file in files if (t := _read(file, target)) is not None]
            if not tables:
                raise DataError(f"{path}: no row of {target.name}")
            table = _together(tables)
            return cls(target, table.to_pydict(), str(path))
        except (pa.ArrowException, OSError, ValueError, TypeError) as e:  # problems and kernels raise ValueErrors
            raise DataError(f"{path}: not a table of measurements: {(str(e).splitlines() or [''])[0]}") from e

    @property
    def problems(self) -> tuple[Problem, ...]:
        """Problems in the table's order."""
        return tuple(self._rows)

    @cached_property
    def pool(self) -> Pool:
        """Kernels in the table's order."""
        return Pool(self.target.op, self.target.variant, self.target.dtype, tuple(self._kernels.values()))

    def outcome(self, problem: Problem, kernel: KernelBase | str) -> Outcome:
        """Return the measured outcome; a pair that was never measured is a ``runtime_error`` that says so."""
        row = self._row(problem, kernel)
        if row is None:
            return Outcome("runtime_error", f"never measured: {self.source} has no such row")
        if row["status"] != "ok":
            return Outcome(row["status"], row.get("error") or "recorded without a reason")
        return Outcome("ok", None, samples_from_row(row))

    def latency_ms(self, problem: Problem, kernel: KernelBase | str) -> float | None:
        """Return the kernel's time in ms, or None if it failed or was never measured."""
        row = self._row(problem, kernel)
        return float(row["latency_ms"]) if row is not None and row["status"] == "ok" else None

    def oracle(self, problem: Problem) -> Oracle | None:
        """Return the fastest kernel (of equals, the first by name), or None if no kernel has a valid time."""
        status, latency_ms = self._columns["status"], self._columns["latency_ms"]
        rows = self._rows.get(problem, {})
        valid = [(float(latency_ms[row]), name) for name, row in rows.items() if status[row] == "ok"]
        if not valid:
            return None
        latency, name = min(valid)
        return Oracle(name, latency)

    def device(self) -> Device:
        """Describe the device that measured the table; unknown fields stay empty."""
        name = next((d for d in self._columns.get("hw_device", ()) if d), self.target.arch)
        return Device(name, None, None, "", "recorded")

    def plan(self, run_id: str, timing: Timing | None = None, arch: HardwareProfile | None = None) -> Plan:
        """Return a plan of all problems of the table, each with the kernels that have rows.

        Args:
            run_id: of the plan.
            timing: settings; None for the defaults.
            arch: the arch; None for that of the target.

        Raises:
            ConfigError: the arch is unknown, or a kernel is illegal on it.
        """
        origin = self._columns.get("origin")
        index_of = {name: i for i, name in enumerate(self.pool.names)}
        items = tuple(
            Item(
                p,
                str(origin[next(iter(rows.values()))] if origin else "recorded"),
                tuple(sorted(index_of[name] for name in rows)) if len(rows) < len(index_of) else None,
            )
            for p, rows in self._rows.items()
        )
        arch = arch or load_arch(self.target.arch)
        return Plan(self.target, arch, self.pool, items, timing or Timing(), run_id)

    def _row(self, problem: Problem, kernel: KernelBase | str) -> dict[str, Any] | None:
        target = self.target
        name = kernel if isinstance(kernel, str) else kernel.name(target.op, target.variant, target.dtype)
        row = self._rows.get(problem, {}).get(name)
        return None if row is None else {n: values[row] for n, values in self._columns.items()}


class ReplayEngine:
    """Engine that looks outcomes up in a table, see :func:`replay_engine`."""

    def __init__(self, path: str, plan: Plan, index: int) -> None:
        self._plan = plan
        self._table = ReplayTable.load(path, plan.target)

    def device(self) -> Device:
        """Describe the device that measured the table."""
        return self._table.device()

    def measure(
        self, item: Item, known: Mapping[int, Outcome], begin: BeginCallback, careful: bool = False
    ) -> list[Outcome]:
        """Look up the outcomes of one problem; a look-up cannot hang, so `begin` and `careful` are not needed."""
        names = enumerate(self._plan.pool.names)
        return [known[i] if i in known else self._table.outcome(item.problem, name) for i, name in names]


def replay_engine(path: str | Path) -> EngineFactory:
    """Return the factory of engines that answer from the table at `path`; workers can unpickle it."""
    return partial(ReplayEngine, str(path))


def samples_from_row(row: Mapping[str, Any]) -> Samples:
    """Return samples whose summary (:func:`tilewise.collect.summarize_samples`) equals the row.

    Their number is the recorded one: each recorded percentile fixes the two samples that it lies between. If only the
    median is known, as in most imports, it is the single sample.
    """
    middle = float(row["latency_ms"])
    count = int(row.get("repeats") or 1)
    recorded = [row.get(n) for n in ("latency_min_ms", "latency_p20_ms", "latency_ms", "latency_p80_ms")]
    times = [middle]
    if count > 1 and all(v is not None for v in recorded):
        times = _times(count, [float(v) for v in recorded if v is not None])
    clock = row.get("sm_clock_mhz")
    return Samples(tuple(times), () if clock is None else (int(clock),), int(row.get("unrolled") or 1))


def _times(count: int, recorded: list[float]) -> list[float]:
    """Return `count` ascending times with this minimum, 20th, 50th and 80th percentile."""
    times: list[float | None] = [None] * count
    times[0] = recorded[0]
    for q, value in zip((20, 50, 80), recorded[1:], strict=True):
        at = (count - 1) * q / 100
        low, part = int(at), at - int(at)
        known = times[low]
        below = value if known is None else known
        times[low] = below
        if part > 0 and times[low + 1] is None:
            times[low + 1] = below + (value - below) / part
    filled = [recorded[0]]
    for time in times[1:]:  # samples between the fixed ones are free
        filled.append(filled[-1] if time is None else time)
    return filled


def _together(tables: Sequence[pa.Table]) -> pa.Table:
    """Return tables of one op as one; rows name their backend, if there are several."""
    backends = [_backend_of(table) for table in tables]
    mixed = together(backends)
    if mixed.parts:
        kinds = mixed.column_kinds()
        tables = [_filled(table, known.name, kinds) for table, known in zip(tables, backends, strict=True)]
    return pa.concat_tables(tables, promote_options="permissive")


def _backend_of(table: pa.Table) -> Backend:
    return backend_of_columns(table.column_names, _tags(table))


def _tags(table: pa.Table) -> list[str]:
    return table[BACKEND_COLUMN].unique().to_pylist() if BACKEND_COLUMN in table.column_names else []


def _filled(table: pa.Table, name: str, kinds: Mapping[str, FieldKind]) -> pa.Table:
    for column, kind in kinds.items():
        if column not in table.column_names:
            value = name if column == BACKEND_COLUMN else FILL[kind]
            table = table.append_column(column, pa.array([value] * table.num_rows))
    return table


def _read(file: Path, target: Target) -> pa.Table | None:
    """Return the rows of `target` with the columns that are used, or None if there are no rows."""
    names = pq.read_schema(file).names
    if not {c.name for c in TARGET_COLUMNS} <= set(names):
        raise DataError(f"{file}: not a measurement table: columns op, variant, dtype and arch are missing")
    tag = [BACKEND_COLUMN] if BACKEND_COLUMN in names else []
    table = pq.read_table(file, columns=[*(c.name for c in TARGET_COLUMNS), *tag], partitioning=None)
    is_target = reduce(pc.and_, (pc.equal(table[c.name], getattr(target, c.name)) for c in TARGET_COLUMNS))
    if not table.num_rows or not pc.any(is_target).as_py():
        return None
    known, op = backend_of_columns(names, _tags(table)), OPS[target.op]
    kinds = known.column_kinds()
    wanted = (*OPS[target.op].column_names(), *kinds, *_NEEDED)
    implied = {n: op.defaults()[n] for n in op.later_columns} | known.later_columns
    later = {n: value for n, value in implied.items() if n not in names}
    missing = [n for n in wanted if n not in (*names, *later)]
    if missing:
        raise DataError(f"{file}: column {', '.join(missing)} is missing")
    columns = [n for n in dict.fromkeys([*wanted, *_RESULTS]) if n in names]
    table = pq.read_table(file, columns=columns, partitioning=None).filter(is_target).replace_schema_metadata(None)
    for name, value in later.items():  # a file of an earlier version means the default
        table = table.append_column(name, pa.array([value] * table.num_rows, pa.scalar(value).type))
    return table

"""A recorded table in place of a GPU: whatever measures can be pointed at it.

:class:`RecordedMeasurements` answers single questions (search, fallback, validation); :func:`recorded_engine` makes the
engine with which :func:`tilewise.collect.run.collect` runs a plan. What was never measured is a failure that says so.
Needs pyarrow and numpy alone, like everything that measures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property, partial, reduce
from pathlib import Path
from typing import Any, NamedTuple, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tilewise.arch import HardwareProfile, load_arch
from tilewise.collect.engine import Device, EngineFactory
from tilewise.collect.plan import Item, Plan, Timing
from tilewise.collect.results import Outcome, Samples
from tilewise.data.columns import TARGET
from tilewise.errors import DataError
from tilewise.kernels.backends import KernelBase, backend_of_columns
from tilewise.kernels.pool import Pool
from tilewise.ops import OPS, Problem, Target

__all__ = ["Oracle", "RecordedEngine", "RecordedMeasurements", "recorded_engine", "samples_of"]

_RESULTS = (
    *("status", "error", "latency_ms", "latency_min_ms", "latency_p20_ms", "latency_p80_ms"),
    *("repeats", "unrolled", "sm_clock_mhz", "origin", "hw_device"),
)
_NEEDED = ("kernel_name", "status", "latency_ms")


class Oracle(NamedTuple):
    """The fastest kernel that was measured for a problem."""

    kernel_name: str
    latency_ms: float


class RecordedMeasurements:
    """What a table says about the kernels and problems of one target.

    Of several rows of a problem and kernel the first valid one counts, or else the first.

    Args:
        target: of the rows.
        columns: the table's, as lists by name.
        source: names the table in errors.
    """

    def __init__(self, target: Target, columns: Mapping[str, list[Any]], source: str) -> None:
        self.target = target
        self.source = source
        self._columns = {n: values for n, values in columns.items() if n in _RESULTS}
        self._rows: dict[Problem, dict[str, int]] = {}  # row by kernel name
        self._kernels: dict[str, KernelBase] = {}
        kind, names = backend_of_columns(columns).kernel, OPS[target.op].column_names()
        problems: dict[tuple[Any, ...], Problem] = {}
        status = columns["status"]
        for row, (name, *key) in enumerate(zip(*(columns[n] for n in ("kernel_name", *names)), strict=True)):
            problem = problems.get(tuple(key))
            if problem is None:
                problem = problems[tuple(key)] = OPS[target.op](**dict(zip(names, key, strict=True)))
            if name not in self._kernels:
                self._kernels[name] = kind.from_dict({n: columns[n][row] for n in kind.column_names()})
            known = self._rows.setdefault(problem, {})
            if name not in known or (status[row] == "ok" and status[known[name]] != "ok"):
                known[name] = row

    @classmethod
    def load(cls, path: str | Path, target: Target) -> Self:
        """Read a parquet file, or all of a folder.

        Raises:
            DataError: it cannot be read, lacks a column, holds no row of `target`, or a row that is no measurement.
        """
        path = Path(path)
        files = sorted(path.rglob("*.parquet")) if path.is_dir() else [path]
        try:
            tables = [t for file in files if (t := _read(file, target)) is not None]
            if not tables:
                raise DataError(f"{path}: no row of {target.name}")
            table = pa.concat_tables(tables, promote_options="permissive")
            return cls(target, table.to_pydict(), str(path))
        except (pa.ArrowException, OSError, ValueError, TypeError) as e:  # problems and kernels raise ValueErrors
            raise DataError(f"{path}: not a table of measurements: {(str(e).splitlines() or [''])[0]}") from e

    @property
    def problems(self) -> tuple[Problem, ...]:
        """The problems, in the table's order."""
        return tuple(self._rows)

    @cached_property
    def pool(self) -> Pool:
        """The kernels, in the table's order."""
        return Pool(self.target.op, self.target.variant, self.target.dtype, tuple(self._kernels.values()))

    def outcome(self, problem: Problem, kernel: KernelBase | str) -> Outcome:
        """What measuring gave; a pair that was never measured is a ``runtime_error`` that says so."""
        row = self._row(problem, kernel)
        if row is None:
            return Outcome("runtime_error", f"never measured: {self.source} has no such row")
        if row["status"] != "ok":
            return Outcome(row["status"], row.get("error") or "recorded without a reason")
        return Outcome("ok", None, samples_of(row))

    def latency_ms(self, problem: Problem, kernel: KernelBase | str) -> float | None:
        """The kernel's time, None where it failed or was never measured."""
        row = self._row(problem, kernel)
        return float(row["latency_ms"]) if row is not None and row["status"] == "ok" else None

    def oracle(self, problem: Problem) -> Oracle | None:
        """The fastest kernel, the first by name of equal ones; None where none is valid."""
        status, latency_ms = self._columns["status"], self._columns["latency_ms"]
        rows = self._rows.get(problem, {})
        valid = [(float(latency_ms[row]), name) for name, row in rows.items() if status[row] == "ok"]
        if not valid:
            return None
        latency, name = min(valid)
        return Oracle(name, latency)

    def device(self) -> Device:
        """The recorded device; what is unknown of it is left empty."""
        known = next((d for d in self._columns.get("hw_device", ()) if d), self.target.arch)
        return Device(known, None, None, "", "recorded")

    def plan(self, run_id: str, timing: Timing | None = None, arch: HardwareProfile | None = None) -> Plan:
        """All problems of the table with the kernels that it has rows of, to be collected again.

        Raises:
            ConfigError: the arch is unknown, or a kernel is illegal on it.
        """
        origin = self._columns.get("origin")
        place = {name: i for i, name in enumerate(self.pool.names)}
        items = tuple(
            Item(
                p,
                str(origin[next(iter(rows.values()))] if origin else "recorded"),
                tuple(sorted(place[name] for name in rows)) if len(rows) < len(place) else None,
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


class RecordedEngine:
    """Measures by looking it up; see :func:`recorded_engine`."""

    def __init__(self, path: str, plan: Plan, index: int) -> None:
        self._plan = plan
        self._table = RecordedMeasurements.load(path, plan.target)

    def device(self) -> Device:
        """The recorded device."""
        return self._table.device()

    def measure(
        self,
        item: Item,
        known: Mapping[int, Outcome],
        begin: Callable[[int | None], None],
        careful: bool = False,
    ) -> list[Outcome]:
        """See :class:`tilewise.collect.engine.Engine`; nothing here can hang or break."""
        names = enumerate(self._plan.pool.names)
        return [known[i] if i in known else self._table.outcome(item.problem, name) for i, name in names]


def recorded_engine(path: str | Path) -> EngineFactory:
    """An engine that answers from the table at `path`, for workers in other processes."""
    return partial(RecordedEngine, str(path))


def samples_of(row: Mapping[str, Any]) -> Samples:
    """Samples whose summary (:func:`tilewise.collect.results.summary`) is what the row says.

    As many as were recorded: each recorded percentile fixes the two samples that it lies between. Where only the
    median is known, as in most imports, it is the one sample.
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
    for time in times[1:]:  # between fixed samples any will do
        filled.append(filled[-1] if time is None else time)
    return filled


def _read(file: Path, target: Target) -> pa.Table | None:
    names = set(pq.read_schema(file).names)
    if not {c.name for c in TARGET} <= names:
        raise DataError(f"{file}: not a measurement table: columns op, variant, dtype and arch are missing")
    table = pq.read_table(file, columns=[c.name for c in TARGET], partitioning=None)
    keep = reduce(pc.and_, (pc.equal(table[c.name], getattr(target, c.name)) for c in TARGET))
    if not table.num_rows or not pc.any(keep).as_py():
        return None
    wanted = (*OPS[target.op].column_names(), *backend_of_columns(names).kernel.column_names(), *_NEEDED)
    missing = [n for n in wanted if n not in names]
    if missing:
        raise DataError(f"{file}: column {', '.join(missing)} is missing")
    columns = list(dict.fromkeys([*wanted, *(n for n in _RESULTS if n in names)]))
    return pq.read_table(file, columns=columns, partitioning=None).filter(keep).replace_schema_metadata(None)

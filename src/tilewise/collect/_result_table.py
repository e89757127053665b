"""Measurement table of a run, from journal entries to parquet; needs NumPy and pyarrow only."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tilewise.collect._journal import JournalEntry
from tilewise.collect._plan import Plan
from tilewise.data import DERIVED_COLUMNS, PROGRAMS_COLUMN, Column, measurement_columns
from tilewise.errors import DataError
from tilewise.files import create_bytes

# Times repeat within a quarter of a percent. 12 bits of mantissa are ten times finer than that, and the bits below them
# would take half of a table's size.
_MANTISSA_BITS = 12
_ARROW_TYPES = {"str": pa.string(), "int": pa.int64(), "float": pa.float32(), "bool": pa.bool_()}


def measurement_table(plan: Plan, entries: Iterable[JournalEntry]) -> pa.Table:
    """Build the table of measured problems, without the columns that reading derives.

    Returns:
        One row per (problem, kernel) that the plan asks for, failures included, in the plan's order of problems and
        kernels. The version of the programs is a column only if one is known.
    """
    done = sorted(entries, key=lambda e: e.index)
    cells = _problem_columns(plan, done) | _kernel_columns(plan, len(done)) | _outcome_columns(plan, done)
    cells |= _program_versions(plan, done)
    every = measurement_columns(plan.target.op, plan.pool.backend.name)
    omitted = {*DERIVED_COLUMNS, PROGRAMS_COLUMN} - cells.keys()
    columns = [column for column in every if column.name not in omitted]
    arrays = [_array(column, cells.get(column.name), len(done) * len(plan.pool)) for column in columns]
    full = pa.Table.from_arrays(arrays, schema=pa.schema([_field(c) for c in columns]))
    if all(item.kernels is None for item in plan.items):
        return full
    return full.filter(pa.array(np.concatenate([plan.kernel_mask(entry.index) for entry in done])))


def write_measurement_table(rows: pa.Table, path: Path) -> None:
    """Write a table to a new parquet file.

    Raises:
        DataError: the file exists already.
    """
    floats = [f.name for f in rows.schema if pa.types.is_floating(f.type)]
    buffer = io.BytesIO()
    pq.write_table(
        rows,
        buffer,
        compression="zstd",
        compression_level=19,
        use_dictionary=[name for name in rows.column_names if name not in floats],
        column_encoding=dict.fromkeys(floats, "BYTE_STREAM_SPLIT"),  # exponents compress, mantissas do not
        write_page_checksum=True,
    )
    try:
        create_bytes(path, buffer.getvalue())
    except FileExistsError as e:
        raise DataError(f"{path} exists already; earlier results are never overwritten, choose another output") from e


def is_measurement_table(path: Path, rows: pa.Table) -> bool:
    """Return whether a file holds exactly these rows."""
    try:
        return bool(pq.read_table(path, partitioning=None).equals(rows))
    except (pa.ArrowException, OSError):
        return False


def _field(column: Column) -> pa.Field:
    return pa.field(column.name, _ARROW_TYPES[column.kind], column.nullable)


def _array(column: Column, values: pa.Array | np.ndarray | None, rows: int) -> pa.Array:
    kind = _ARROW_TYPES[column.kind]
    if values is None or not rows:
        return pa.nulls(rows, kind)
    if isinstance(values, pa.Array):
        return values.cast(kind)
    figures = _rounded(values) if pa.types.is_floating(kind) else values
    return pa.array(figures, from_pandas=True).cast(kind)  # NaN becomes null


def _rounded(values: np.ndarray) -> np.ndarray:
    """Round to float32 with the nearest mantissa of :data:`_MANTISSA_BITS` bits; NaN stays NaN."""
    mantissa, exponent = np.frexp(values)
    scale = 2.0 ** (_MANTISSA_BITS + 1)
    rounded: np.ndarray = np.ldexp(np.rint(mantissa * scale) / scale, exponent).astype(np.float32)
    return rounded


def _problem_columns(plan: Plan, done: Sequence[JournalEntry]) -> dict[str, pa.Array]:
    """Return the columns that are equal for all kernels of a problem."""
    problem_of_row = np.repeat(np.arange(len(done)), len(plan.pool))
    rows = [
        {
            **dataclasses.asdict(plan.target),
            **plan.items[entry.index].problem.to_dict(),
            **{name: value for name, value in dataclasses.asdict(entry.device).items() if name != PROGRAMS_COLUMN},
            "run_id": plan.run_id,
            "origin": plan.items[entry.index].origin,
            "measured_at": entry.measured_at,
        }
        for entry in done
    ]
    names = rows[0] if rows else ()
    return {name: pa.array([row[name] for row in rows]).take(problem_of_row) for name in names}


def _kernel_columns(plan: Plan, problems: int) -> dict[str, pa.Array]:
    """Return the columns that are equal for all problems of a kernel."""
    kernel_of_row = np.tile(np.arange(len(plan.pool)), problems)
    columns = {name: values.tolist() for name, values in plan.pool.columns.items()}
    named: Mapping[str, Sequence[object]] = {"kernel_name": plan.pool.names, **columns}
    return {name: pa.array(values).take(kernel_of_row) for name, values in named.items()}


def _program_versions(plan: Plan, done: Sequence[JournalEntry]) -> dict[str, pa.Array]:
    """Return the version of the project's own programs, empty in rows of other kernels; nothing if none is known."""
    is_own = [plan.pool.backend.source_of(kernel).compiled_here for kernel in plan.pool.kernels]
    versions = [entry.device.programs_version if own else None for entry in done for own in is_own]
    return {PROGRAMS_COLUMN: pa.array(versions, pa.int64())} if any(versions) else {}


def _outcome_columns(plan: Plan, done: Sequence[JournalEntry]) -> dict[str, np.ndarray]:
    """Return the columns whose values belong to one (problem, kernel), each of shape (problems x kernels,)."""
    shape = (len(done), len(plan.pool))
    names = {name for entry in done for name in entry.ok} - {"kernel"}
    figures = {name: np.full(shape, np.nan) for name in names | {"latency_ms"}}
    status, error = np.full(shape, "ok", dtype=object), np.full(shape, None, dtype=object)
    for at, entry in enumerate(done):
        for name in entry.ok.keys() - {"kernel"}:
            figures[name][at, entry.ok["kernel"]] = [np.nan if v is None else v for v in entry.ok[name]]
        for group in entry.failed:
            status[at, group.kernels] = group.status
            error[at, group.kernels] = group.error
    flat = {name: values.ravel() for name, values in figures.items()}
    return flat | {"status": status.ravel(), "error": error.ravel(), "is_valid": (status == "ok").ravel()}

"""Journal entries -> the measurement table, as parquet. Needs pyarrow alone, so it runs on a bare GPU machine."""

from __future__ import annotations

import dataclasses
import io
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from tilewise.collect.journal import Entry
from tilewise.collect.plan import Plan
from tilewise.data.columns import DERIVED, Column, measurement_columns
from tilewise.errors import DataError
from tilewise.files import create_bytes

# Times repeat within a quarter of a percent: 12 bits of mantissa are ten times finer, and what lies below them would be
# half of a table's size.
_MANTISSA_BITS = 12
_ARROW = {"str": pa.string(), "int": pa.int64(), "float": pa.float32(), "bool": pa.bool_()}


def table(plan: Plan, entries: Iterable[Entry]) -> pa.Table:
    """One row a (problem, kernel) that the plan asks for, failures included, problems and kernels in its order.

    Without the columns that reading derives.
    """
    done = sorted(entries, key=lambda e: e.index)
    cells = _by_problem(plan, done) | _by_kernel(plan, len(done)) | _results(plan, done)
    every = measurement_columns(plan.target.op, plan.pool.backend.name)
    columns = [column for column in every if column.name not in DERIVED]
    arrays = [_array(column, cells.get(column.name), len(done) * len(plan.pool)) for column in columns]
    everything = pa.Table.from_arrays(arrays, schema=pa.schema([_field(c) for c in columns]))
    if all(item.kernels is None for item in plan.items):
        return everything
    return everything.filter(pa.array(np.concatenate([plan.chosen(entry.index) for entry in done])))


def write_parquet(rows: pa.Table, path: Path) -> None:
    """Write a table to a file that does not exist yet.

    Raises:
        DataError: it exists.
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


def _field(column: Column) -> pa.Field:
    return pa.field(column.name, _ARROW[column.kind], column.nullable)


def _array(column: Column, values: Any, rows: int) -> pa.Array:
    kind = _ARROW[column.kind]
    if values is None or not rows:
        return pa.nulls(rows, kind)
    if isinstance(values, pa.Array):
        return values.cast(kind)
    figures = _rounded(values) if pa.types.is_floating(kind) else values
    return pa.array(figures, from_pandas=True).cast(kind)  # NaN is nothing


def _rounded(values: np.ndarray) -> np.ndarray:
    """To float32 with the nearest mantissa of :data:`_MANTISSA_BITS`; NaN stays."""
    mantissa, exponent = np.frexp(values)
    scale = 2.0 ** (_MANTISSA_BITS + 1)
    rounded: np.ndarray = np.ldexp(np.rint(mantissa * scale) / scale, exponent).astype(np.float32)
    return rounded


def _by_problem(plan: Plan, done: Sequence[Entry]) -> dict[str, Any]:
    """Columns that are equal for all kernels of a problem."""
    which = np.repeat(np.arange(len(done)), len(plan.pool))
    rows = [
        {
            **dataclasses.asdict(plan.target),
            **plan.items[entry.index].problem.to_dict(),
            **dataclasses.asdict(entry.device),
            "run_id": plan.run_id,
            "origin": plan.items[entry.index].origin,
            "measured_at": entry.measured_at,
        }
        for entry in done
    ]
    return {name: pa.array([row[name] for row in rows]).take(which) for name in (rows[0] if rows else ())}


def _by_kernel(plan: Plan, problems: int) -> dict[str, Any]:
    """Columns that are equal for all problems of a kernel."""
    which = np.tile(np.arange(len(plan.pool)), problems)
    columns = {name: values.tolist() for name, values in plan.pool.columns.items()}
    return {name: pa.array(values).take(which) for name, values in {"kernel_name": plan.pool.names, **columns}.items()}


def _results(plan: Plan, done: Sequence[Entry]) -> dict[str, Any]:
    """Columns with a value of its own for each (problem, kernel)."""
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

"""Reader of parquet tables with the columns of the benchmark CSV, or with those of CK Tile's own training data."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tilewise.data.importers._ck_csv import coded_column, required_columns
from tilewise.data.importers._reader import EMPTY, Block, Coded, Floats, Ints, Reader, Records, cut, split_names
from tilewise.errors import DataError
from tilewise.ops import OPS, Target

ROWS = 1 << 16
READ_ERRORS = (pa.ArrowException, OSError, ValueError, OverflowError, MemoryError)
_NAMES = ("kernel", "kernel_name")
# Names that CK Tile's data pipeline gives the columns of its training data.
_TRAINING_NAMES = {"m": "M", "n": "N", "k": "K", "measured_tflops": "tflops"}


def is_measurements(path: Path) -> bool:
    """Return whether a parquet file has the columns of a measurement table, rather than those of a benchmark.

    Raises:
        DataError: the file is not a readable parquet file.
    """
    return {"op", "kernel_name", "status"} <= set(open_parquet(path).schema_arrow.names)


def read_table(path: Path, target: Target, progress: Callable[[int, int], None] | None = None) -> Reader:
    """Yield the records of a parquet file; `line` is the row, from 0.

    Raises:
        DataError: the file is damaged, lacks a column, or has a column of another type.
    """
    file = open_parquet(path)
    stored = {_name(n, file.schema_arrow.names): n for n in file.schema_arrow.names}
    names = list(stored)
    kernel = next((n for n in _NAMES if n in names), None)
    missing = [n for n in (*required_columns(target), "latency_ms") if n not in names]
    if kernel is None or missing:
        raise DataError(f"{path}: column {', '.join(([] if kernel else ['kernel']) + missing)} is missing")
    fields = OPS[target.op].column_names()
    known = (kernel, *fields, "latency_ms", "tflops", "non_zero", "split_k", "arch")
    wanted = {stored[n]: n for n in names if n in known}
    row = 0
    for batch in batches(file, path, list(wanted)):
        table = batch.rename_columns([wanted[n] for n in batch.column_names])
        yield _block(table, path, target, kernel, row)
        row += batch.num_rows
        if progress:
            progress(row, file.metadata.num_rows)


def _name(stored: str, names: Collection[str]) -> str:
    """Return the CSV's name of a column."""
    name = _TRAINING_NAMES.get(stored, stored)
    return stored if name in names else name


def batches(file: pq.ParquetFile, path: Path, columns: list[str]) -> Iterator[pa.Table]:
    """Yield the file's rows in tables of bounded size.

    Raises:
        DataError: the file is damaged.
    """
    try:
        for batch in file.iter_batches(ROWS, columns=columns, use_threads=False):
            table = pa.Table.from_batches([batch])
            table.validate(full=True)
            yield table
    except READ_ERRORS as e:
        raise DataError(f"{path}: not a readable parquet file: {first_line(e)}") from e


def open_parquet(path: Path) -> pq.ParquetFile:
    """Open a parquet file and read its footer.

    Raises:
        DataError: the file is damaged, or a column name is not unique.
    """
    try:
        file = pq.ParquetFile(path, page_checksum_verification=True)
        names = file.schema_arrow.names
    except READ_ERRORS as e:
        raise DataError(f"{path}: not a readable parquet file: {first_line(e)}") from e
    repeated = sorted({n for n in names if names.count(n) > 1})
    if repeated:
        raise DataError(f"{path}: column names must be unique, got {', '.join(repeated)} more than once")
    return file


def first_line(error: Exception) -> str:
    """Return the first line of an error's message, or its type."""
    return (str(error).splitlines() or [type(error).__name__])[0]


def _block(table: pa.Table, path: Path, target: Target, kernel: str, row: int) -> Block:
    fields = OPS[target.op].column_names()
    problem: dict[str, Ints | Coded] = {}
    for name in fields:
        if name in table.column_names:
            problem[name] = _words(table, name, path) if name == "layout" else _ints(table, name, path)
    outcomes: dict[int, tuple[str, str]] = {}
    if "non_zero" in table.column_names:
        failed = np.flatnonzero(_ints(table, "non_zero", path) == 0).tolist()
        outcomes = dict.fromkeys(failed, ("wrong_result", "the kernel computed nothing: non_zero is 0"))
    tflops = _floats(table, "tflops", path) if "tflops" in table.column_names else np.full(table.num_rows, np.nan)
    kernels, faults = _words(table, kernel, path), dict[int, str]()
    if "split_k" in table.column_names:
        kernels, faults = split_names(kernels, _ints(table, "split_k", path))
    if "arch" in table.column_names:
        faults |= _other_archs(_words(table, "arch", path), target)
    records = Records(
        row + np.arange(table.num_rows, dtype=np.int64),
        kernels,
        problem,
        _floats(table, "latency_ms", path),
        tflops,
        outcomes,
        lambda i: cut(str(table.slice(i, 1).to_pylist()[0])),
        faults,
    )
    return Block(records)


def _other_archs(arch: Coded, target: Target) -> dict[int, str]:
    """Return a fault for each row that states another arch than the target's."""
    other = np.array([word not in ("", target.arch) for word in arch.words], dtype=bool)[arch.codes]
    return {
        i: f"arch is {arch.words[arch.codes[i]][:40]!r}, but the target is of {target.arch}"
        for i in np.flatnonzero(other).tolist()
    }


def _words(table: pa.Table, name: str, path: Path) -> Coded:
    return coded_column(_cast(table, name, pa.string(), path))


def _ints(table: pa.Table, name: str, path: Path) -> Ints:
    values = pc.fill_null(_cast(table, name, pa.int64(), path).combine_chunks(), EMPTY)
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.int64)


def _floats(table: pa.Table, name: str, path: Path) -> Floats:
    values = pc.fill_null(_cast(table, name, pa.float64(), path).combine_chunks(), np.nan)
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.float64)


def _cast(table: pa.Table, name: str, type_: pa.DataType, path: Path) -> pa.ChunkedArray:
    column = table[name]
    is_numeric = pa.types.is_integer(column.type) or pa.types.is_floating(column.type)
    try:
        if is_numeric == pa.types.is_string(type_):
            raise pa.ArrowInvalid(f"it holds {column.type}")
        return pc.cast(column, type_)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
        raise DataError(f"{path}: column {name} must hold {type_} values: {first_line(e)}") from e

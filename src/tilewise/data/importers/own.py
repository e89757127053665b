"""Tilewise's own tables, whole or with columns missing that can be filled in: rows of the target, each checked."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tilewise.data.columns import TARGET, Column, measurement_columns
from tilewise.data.importers._base import Loss, cut
from tilewise.data.importers.convert import ARROW, Converter
from tilewise.data.importers.tables import batches, first_line, open_parquet
from tilewise.data.rows import is_of
from tilewise.data.schema import row_faults
from tilewise.errors import DataError
from tilewise.kernels.backends import backend_of_target
from tilewise.ops import Target

_PLAIN = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}


def read_own(
    path: Path, target: Target, convert: Converter, progress: Callable[[int, int], None] | None = None
) -> Iterator[tuple[pa.Table, list[Loss]]]:
    """Tables of good rows, with what was lost; `run_id` and `origin` are kept where the file has them.

    Raises:
        DataError: the file is damaged, lacks a column, or has one that holds something else.
    """
    file = open_parquet(path)
    columns = measurement_columns(target.op, backend_of_target(target).name)
    names = set(file.schema_arrow.names)
    filled = {*convert.provenance, "is_valid"}
    missing = [c.name for c in columns if c.name not in names and not c.nullable and c.name not in filled]
    if missing:
        raise DataError(f"{path}: column {', '.join(missing)} is missing; a table of {target.op} has {len(columns)}")
    row = 0
    for raw in batches(file, path, [c.name for c in columns if c.name in names]):
        table = pa.table({c.name: _column(raw, c, convert, path) for c in columns})
        yield _checked(table, columns, target, convert, row)
        row += raw.num_rows
        if progress:
            progress(row, file.metadata.num_rows)


def _column(raw: pa.Table, column: Column, convert: Converter, path: Path) -> pa.ChunkedArray | pa.Array:
    if column.name in raw.column_names:
        found = raw[column.name]
        is_text = any(t(found.type) for t in (pa.types.is_string, pa.types.is_large_string, pa.types.is_dictionary))
        if is_text != (column.kind == "str") and not pa.types.is_null(found.type):
            raise DataError(f"{path}: column {column.name} must hold {column.kind} values, got {found.type}")
        try:
            return pc.cast(found, _PLAIN[column.kind])
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as e:
            raise DataError(f"{path}: column {column.name} must hold {column.kind} values: {first_line(e)}") from e
    if column.name == "is_valid":
        return pc.equal(raw["status"], "ok")
    fill = convert.provenance.get(column.name)
    return pa.array([fill] * raw.num_rows, _PLAIN[column.kind])


def _checked(
    table: pa.Table, columns: tuple[Column, ...], target: Target, convert: Converter, row: int
) -> tuple[pa.Table, list[Loss]]:
    frame = table.to_pandas()
    of_target = is_of(frame, target) if len(frame) else np.zeros(0, dtype=bool)
    reasons = np.full(len(frame), "", dtype=object)
    for i in np.flatnonzero(~of_target).tolist():
        what = " ".join(str(frame[c.name].iloc[i]) for c in TARGET)
        convert.others.add(what)
        reasons[i] = f"the row is one of {what}"
    if of_target.any():
        reasons[of_target] = row_faults(frame[of_target].reset_index(drop=True)).to_numpy(dtype=object)
    losses = [
        Loss(row + i, str(reasons[i]), cut(str(table.slice(i, 1).to_pylist()[0])))
        for i in np.flatnonzero(reasons != "").tolist()
    ]
    good = table.filter(pa.array(reasons == ""))
    arrays = [good[c.name].dictionary_encode().cast(ARROW["str"]) if c.kind == "str" else good[c.name] for c in columns]
    return pa.Table.from_arrays(arrays, schema=convert.schema), losses

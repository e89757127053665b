"""Reader of tilewise's own tables. It fills in missing provenance and checks every row."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tilewise.data._columns import TARGET_COLUMNS, Column, measurement_columns
from tilewise.data._rows import is_of
from tilewise.data._schema import row_faults
from tilewise.data.importers._convert import ARROW, Converter
from tilewise.data.importers._flat_tables import batches, first_line, open_parquet
from tilewise.data.importers._reader import Loss, cut
from tilewise.errors import DataError
from tilewise.kernels import backend_of_target
from tilewise.ops import OPS, Target

_PLAIN = {"str": pa.string(), "int": pa.int64(), "float": pa.float64(), "bool": pa.bool_()}


def read_own(
    path: Path, target: Target, convert: Converter, progress: Callable[[int, int], None] | None = None
) -> Iterator[tuple[pa.Table, list[Loss]]]:
    """Yield tables of good rows, each with its losses. The file's own `run_id` and `origin` take precedence.

    Raises:
        DataError: the file is damaged, lacks a column, or has a column of another type.
    """
    file = open_parquet(path)
    backend = backend_of_target(target)
    columns = measurement_columns(target.op, backend.name)
    names = set(file.schema_arrow.names)
    derivable = {*convert.provenance, "is_valid", *OPS[target.op].later_columns, *backend.later_columns}
    missing = [c.name for c in columns if c.name not in names and not c.nullable and c.name not in derivable]
    if missing:
        raise DataError(
            f"{path}: column {', '.join(missing)} is missing; a table of {target.op} has {len(columns)} columns"
        )
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
    op, later = OPS[convert.target.op], backend_of_target(convert.target).later_columns
    fill = (op.defaults() | later | convert.provenance).get(column.name)
    return pa.array([fill] * raw.num_rows, _PLAIN[column.kind])


def _checked(
    table: pa.Table, columns: tuple[Column, ...], target: Target, convert: Converter, row: int
) -> tuple[pa.Table, list[Loss]]:
    """Return the good rows of a table whose first row is number `row` of its file, and the losses."""
    frame = table.to_pandas()
    of_target = is_of(frame, target) if len(frame) else np.zeros(0, dtype=bool)
    reasons = np.full(len(frame), "", dtype=object)
    for i in np.flatnonzero(~of_target).tolist():
        other = " ".join(str(frame[c.name].iloc[i]) for c in TARGET_COLUMNS)
        convert.others.add(other)
        reasons[i] = f"the row belongs to {other}, not to the target"
    if of_target.any():
        reasons[of_target] = row_faults(frame[of_target].reset_index(drop=True)).to_numpy(dtype=object)
    losses = [
        Loss(row + i, str(reasons[i]), cut(str(table.slice(i, 1).to_pylist()[0])))
        for i in np.flatnonzero(reasons != "").tolist()
    ]
    good = table.filter(pa.array(reasons == ""))
    arrays = [good[c.name].dictionary_encode().cast(ARROW["str"]) if c.kind == "str" else good[c.name] for c in columns]
    return pa.Table.from_arrays(arrays, schema=convert.schema), losses

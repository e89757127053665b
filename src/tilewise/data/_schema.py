"""Reader of measurement tables, and the schema that every row must fulfil.

The schema derives from :mod:`._columns`. A row that breaks a rule raises an error that names file and row
(:func:`read_measurements`), or goes to quarantine with the reason (:func:`row_faults`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import pandas as pd
import pandera.pandas as pa
import pyarrow as arrow
import pyarrow.parquet as pq

from tilewise.arch import DEFAULT_BACKEND
from tilewise.data._backends import backend_of_frame, joined, tags_of
from tilewise.data._columns import (
    DERIVED_COLUMNS,
    PROVENANCE,
    STATUSES,
    TARGET_COLUMNS,
    Column,
    kernel_columns,
    measurement_columns,
    table_columns,
)
from tilewise.data._derived import implied_columns, with_later_columns, with_rates, work_of
from tilewise.data._rows import is_of, numbered, picked, taken
from tilewise.data._text import categories, in_words
from tilewise.errors import ConfigError, DataError, KernelError
from tilewise.kernels import BACKEND_COLUMN, backend_of_columns
from tilewise.ops import OPS, Target, is_known, known_ops

SOURCE = ("source_file", "source_row")  # origin of a row, from reading to quarantine; tables do not store it
QUARANTINED = ".quarantined.parquet"  # ending of the files of rows that preparing took out
TOLERANCE = 5e-3  # relative; importers recompute TFLOPS from rounded latencies

Ints = npt.NDArray[np.int64]

_RAW_TYPES = {"str": "category", "int": "Int64", "float": "float64", "bool": "boolean"}
_TYPES = {"str": "str", "int": "int64", "float": "float64", "bool": "bool"}
_READ_ERRORS = (arrow.ArrowInvalid, arrow.ArrowNotImplementedError, arrow.ArrowTypeError, OSError, ValueError)


def read_measurements(path: Path, target: Target | None = None) -> pd.DataFrame:
    """Read the measurements in a parquet file, or in all parquet files of a folder, and check every row.

    Args:
        path: file or folder; a folder is searched to any depth, in the order of the names.
        target: keep only rows of this target, and skip files of other ops; None keeps all rows.

    Returns:
        The columns of :func:`~tilewise.data.measurement_columns`, in their order and types.

    Raises:
        DataError: no file exists, a file is not a parquet table, a column is missing or of another type, no row
            belongs to `target`, or a row breaks a rule. The message names the file and the row or column.
    """
    return to_measurements(checked(read_raw_measurements(path, target)))


def checked(raw: pd.DataFrame) -> pd.DataFrame:
    """Return rows of :func:`read_raw_measurements` as they are.

    Raises:
        DataError: a row breaks a rule. The message names the file and the row.
    """
    faults = row_faults(raw)
    bad = np.flatnonzero(faults != "")
    if len(bad):
        first = raw.iloc[bad[0]]
        more = f"; {len(bad) - 1} more rows are bad" if len(bad) > 1 else ""
        raise DataError(f"{first['source_file']}: row {first['source_row']}: {faults.iloc[bad[0]]}{more}")
    return raw


def read_raw_measurements(path: Path, target: Target | None = None) -> pd.DataFrame:
    """Read measurements without checking rows; the columns :data:`SOURCE` name each row's file and place.

    Text comes as categories, in the order of their names.

    Args:
        path: as for :func:`read_measurements`.
        target: as for :func:`read_measurements`.

    Raises:
        DataError: as for :func:`read_measurements`, except for faulty rows.
    """
    frames, others = list[pd.DataFrame](), set[str]()
    for file in parquet_files(Path(path)):
        if target and (strangers := other_targets(file, target)):
            others |= strangers
            continue
        table, op = open_table(file)
        if target and op != target.op:
            others.add(f"tables of {op}")
        elif frames and op not in (None, frames[0]["op"].iloc[0]):
            raise DataError(f"{path}: tables of {frames[0]['op'].iloc[0]} and {op} do not fit together; name a target")
        elif op:
            frame = typed(table, op, file, np.arange(len(table)) if target is None else rows_of(table, target))
            if len(frame):
                frames.append(frame)
            elif target:
                others |= targets_in(file)
    if not frames:
        missing = f"no row of {target.name}" if target else "no rows"
        raise DataError(f"{path}: {missing}" + (f"; there are {', '.join(sorted(others))}" if others else ""))
    return joined(frames).reset_index(drop=True)


def row_faults(raw: pd.DataFrame) -> pd.Series:
    """Return the first rule that each row breaks by itself, "" for a good row.

    Args:
        raw: rows of one op from :func:`read_raw_measurements`, or a measurement table.

    Returns:
        A series of shape (rows,), indexed from 0.
    """
    op = str(raw["op"].iloc[0])
    raw = raw.reset_index(drop=True).astype(
        {c.name: _RAW_TYPES[c.kind] for c in table_columns(op, raw.columns, tags_of(raw))}
    )
    faults = _column_faults(raw, op)
    sound = taken(raw, (faults == "").to_numpy())
    if len(sound):
        found = _problem_faults(sound, op)
        found = found.where(found != "", _kernel_faults(sound))
        faults.loc[sound.index] = found
    return faults


def to_measurements(
    raw: pd.DataFrame, tags: Collection[str] | None = None, names: Collection[str] | None = None, text: str = "str"
) -> pd.DataFrame:
    """Return rows without faults in the table's own columns and types.

    Args:
        raw: the rows.
        tags: backends of all rows of the table, if `raw` is a part of it; None: those of `raw`.
        names: of the columns to return; None returns all.
        text: type of text, "category" for rows that are only compared.
    """
    columns = table_columns(str(raw["op"].iloc[0]), raw.columns, tags_of(raw) if tags is None else tags)
    types = {c.name: text if c.kind == "str" else _type(c) for c in columns if names is None or c.name in names}
    kept = raw[list(types)].reset_index(drop=True)
    return (in_words(kept) if text == "str" else kept).astype(types)


@cache
def schema(op: str, backend: str = DEFAULT_BACKEND) -> pa.DataFrameSchema:
    """Return the pandera schema of an op's table with kernels of a backend: types, empty cells and allowed values."""
    columns = measurement_columns(op, backend)
    return pa.DataFrameSchema(
        {c.name: pa.Column(_RAW_TYPES[c.kind], _checks(c), nullable=c.nullable) for c in columns},
        checks=[
            pa.Check(lambda f: (f["status"] == "ok") == f["is_valid"], error="is_valid must mean that status is ok"),
            pa.Check(_is_timed, error="a valid row needs latency_ms"),
        ],
    )


def _checks(column: Column) -> list[pa.Check]:
    if column.name == "status":
        return [pa.Check.isin(STATUSES, error=f"status must be one of {', '.join(STATUSES)}")]
    if column.kind == "float":
        return [
            pa.Check(lambda s: np.isfinite(s), error=f"{column.name} must be finite"),
            pa.Check(lambda s: s > 0, error=f"{column.name} must be positive"),
        ]
    if column in PROVENANCE and column.kind == "int":
        return [pa.Check(lambda s: s >= 0, error=f"{column.name} must not be negative")]
    return []


def _is_timed(frame: pd.DataFrame) -> pd.Series:
    return ~frame["is_valid"].fillna(False).astype(bool) | frame["latency_ms"].notna()


def _column_faults(raw: pd.DataFrame, op: str) -> pd.Series:
    faults = pd.Series("", index=raw.index, dtype=object)
    try:
        schema(op, backend_of_frame(raw).name).validate(raw, lazy=True, inplace=True)
    except pa.errors.SchemaErrors as e:
        cases = e.failure_cases
        if cases["index"].isna().any():  # reading ensures the types, so this rule concerns the whole table
            raise DataError(f"table of {op}: {cases[cases['index'].isna()]['check'].iloc[0]}") from e
        cases = cases.sort_values(
            "schema_context", kind="stable"
        )  # rules of one column come before rules between columns
        for case in cases.drop_duplicates("index").itertuples():
            row = int(cast(int, case.index))
            column = str(case.column) if case.schema_context == "Column" else None
            faults[row] = _fault(str(case.check), column, raw, row)
    return faults


def _fault(check: str, column: str | None, raw: pd.DataFrame, row: int) -> str:
    if column is None:
        return check
    if check == "not_nullable":
        return f"{column} is empty"
    value = raw[column].iloc[row]
    return f"{check}, got {value.item() if isinstance(value, np.generic) else value!r}"


def _problem_faults(frame: pd.DataFrame, op: str) -> pd.Series:
    """Find impossible problems, and rates that do not follow from latency and problem."""
    work = work_of(frame, op)
    faults = pd.Series(work.fault, index=frame.index, dtype=object)
    for name, expected in work.rates(frame["latency_ms"]).items():
        follows = (frame[name] - expected).abs() <= TOLERANCE * expected
        off = frame["is_valid"].astype(bool) & ~follows & (faults == "")
        faults[off] = [
            f"{name} {got:.6g} does not follow from latency_ms: expected {want:.6g}"
            for got, want in zip(frame[name][off], expected[off], strict=True)
        ]
    return faults


def _kernel_faults(frame: pd.DataFrame) -> pd.Series:
    """Find kernel names that do not belong to the kernel columns."""
    backend = backend_of_frame(frame)
    names = [c.name for c in kernel_columns(backend.name)]
    keys = [*names, "op", "variant", "dtype"]
    number, first = numbered(frame, keys)
    found = []
    for row in frame[keys].iloc[first].to_dict("records"):
        try:
            expected = backend.read_kernel({str(k): v for k, v in row.items()}).name(
                row["op"], row["variant"], row["dtype"]
            )
            wrong = f"kernel_name {row['kernel_name']!r} does not belong to its columns: expected {expected!r}"
            found.append("" if expected == row["kernel_name"] else wrong)
        except KernelError as e:
            found.append(str(e))
    return pd.Series(np.array(found, dtype=object)[number], index=frame.index)


def parquet_files(path: Path) -> list[Path]:
    """Return `path` itself, or a folder's parquet files to any depth, by name, without those that are `QUARANTINED`.

    Raises:
        DataError: no such file or folder exists, or the folder holds no parquet file.
    """
    if path.is_file():
        return [path]
    if not path.is_dir():
        raise DataError(f"{path}: no such file or folder of measurements")
    files = sorted(f for f in path.rglob("*.parquet") if not f.name.endswith(QUARANTINED))
    if not files:
        raise DataError(
            f"{path}: no parquet file in this folder; `tilewise collect` or `tilewise ingest` writes one, and "
            "`dvc pull data.dvc` fetches the committed ones of a clone"
        )
    return files


def targets_in(file: Path) -> frozenset[str]:
    """Return the targets of a file's rows by their names, without reading the other columns.

    A file that is not a sound measurement table has none; reading it tells why.
    """
    names = [c.name for c in TARGET_COLUMNS]
    try:
        groups = open_groups(file)
        parts = (groups.read_row_group(i, columns=names).unify_dictionaries() for i in range(groups.num_row_groups))
        distinct = [row for part in parts for row in part.combine_chunks().group_by(names).aggregate([]).to_pylist()]
    except (*_READ_ERRORS, KeyError):
        return frozenset()
    return frozenset("_".join(str(row[name]) for name in names) for row in distinct)


def other_targets(file: Path, target: Target) -> set[str]:
    """Return what to call the rows of a file without rows of `target`; empty for a file that has to be read."""
    found = targets_in(file)
    ops = {op for op in OPS for name in found if name.startswith(f"{op}_")}
    if not found or target.name in found or len(ops) != 1 or not all(name.startswith((*ops,)) for name in found):
        return set()
    return set(found) if target.op in ops else {f"tables of {op}" for op in ops}


def open_table(file: Path, group: int | None = None) -> tuple[arrow.Table, str | None]:
    """Read a file, or one of its row groups, and its op; the op of a table without rows is unknown (None)."""
    try:
        source = open_groups(file)
        table = source.read() if group is None else source.read_row_group(group)
        # Pandas' metadata is not needed, and may be damaged.
        table = table.replace_schema_metadata(None).unify_dictionaries()
        table.validate(full=True)
    except _READ_ERRORS as e:
        raise DataError(f"{file}: not a readable parquet file: {str(e).splitlines()[0]}") from e
    if "op" not in table.column_names:
        raise DataError(f"{file}: column op is missing, so this is not a measurement table")
    ops = sorted(map(str, table["op"].to_pandas().map(str).unique()))
    if len(ops) > 1:
        raise DataError(f"{file}: column op must hold one op per file, got {', '.join(sorted(ops))}")
    if ops and not is_known(ops[0]):
        raise DataError(f"{file}: row 0: op must be one of {', '.join(known_ops())}, got {ops[0]!r}")
    return table, ops[0] if ops else None


def open_groups(file: Path) -> pq.ParquetFile:
    """Open a file to read its row groups, with checksums, and with text as dictionaries."""
    text = [field.name for field in pq.read_schema(file) if field.type in (arrow.string(), arrow.large_string())]
    return pq.ParquetFile(file, page_checksum_verification=True, read_dictionary=text)


def typed(
    table: arrow.Table, op: str, file: Path, rows: Ints, first: int = 0, tags: Collection[str] | None = None
) -> pd.DataFrame:
    """Return the columns of some rows in raw types, and the source of each row.

    Args:
        table: a file, or one of its row groups.
        op: the op of all rows.
        file: the file, for messages.
        rows: numbers of the rows in `table`.
        first: number of the first row of `table` in the file.
        tags: backends of the whole file's rows; None: those of `table`.
    """
    tags = backend_tags(table, file) if tags is None else tags
    columns = table_columns(op, table.column_names, tags)
    repeated = [c.name for c in columns if table.column_names.count(c.name) > 1]
    if repeated:
        raise DataError(f"{file}: column names must be unique, got {', '.join(repeated)} more than once")
    stored = [c for c in columns if c.name in table.column_names]
    later = implied_columns(op, backend_of_columns(table.column_names, tags))
    missing = [c.name for c in columns if c not in stored and c.name not in (*DERIVED_COLUMNS, *later)]
    if missing:
        raise DataError(f"{file}: column {', '.join(missing)} is missing; a table of {op} has {len(columns)} columns")
    chosen = table.select([c.name for c in stored])
    frame = picked(chosen, rows).to_pandas()
    typed = with_later_columns(pd.DataFrame({c.name: _convert(frame[c.name], c, file) for c in stored}, copy=False), op)
    is_complete = {c.name for c in columns} == set(typed.columns)
    complete = (typed if is_complete else with_rates(typed, op))[[c.name for c in columns]]
    source = pd.Categorical.from_codes(np.zeros(len(rows), dtype=np.int8), [str(file)])
    return pd.DataFrame({**complete, SOURCE[0]: source, SOURCE[1]: first + rows}, copy=False)


def rows_of(table: arrow.Table, target: Target) -> Ints:
    """Return the numbers of the target's rows, before the other columns of a large file are converted."""
    names = [c.name for c in TARGET_COLUMNS]
    return np.flatnonzero(is_of(table.select(names).to_pandas(), target))


def backend_tags(table: arrow.Table, file: Path) -> set[str]:
    """Return the backends that the rows name.

    Raises:
        DataError: a name is unknown.
    """
    if BACKEND_COLUMN not in table.column_names:
        return set()
    tags = {str(tag) for tag in table[BACKEND_COLUMN].unique().to_pylist() if tag is not None}
    try:
        backend_of_columns(table.column_names, tags)
    except ConfigError as e:
        raise DataError(f"{file}: column {BACKEND_COLUMN}: {e}") from e
    return tags


def typed_columns(file: Path, group: int, columns: Sequence[Column], rows: Ints) -> pd.DataFrame:
    """Return stored columns of some rows of a row group in the table's types."""
    try:
        table = open_groups(file).read_row_group(group, columns=[c.name for c in columns]).unify_dictionaries()
    except _READ_ERRORS as e:
        raise DataError(f"{file}: not a readable parquet file: {str(e).splitlines()[0]}") from e
    frame = picked(table, rows).to_pandas()
    frame = pd.DataFrame({c.name: _convert(frame[c.name], c, file) for c in columns}, copy=False)
    return in_words(frame).astype({c.name: _type(c) for c in columns})


def _convert(values: pd.Series, column: Column, file: Path) -> pd.Series:
    try:
        if not (values.isna().all() or _holds(values, column)):
            raise TypeError(f"got {values.dtype}")
        return categories(values) if column.kind == "str" else values.astype(_RAW_TYPES[column.kind])
    except (TypeError, ValueError, OverflowError) as e:
        raise DataError(f"{file}: column {column.name} must hold {column.kind} values: {e}") from e


def _holds(values: pd.Series, column: Column) -> bool:
    """Return whether all values are of the column's kind. Pandas would convert text to numbers, and numbers to text."""
    boolean = bool(pd.api.types.is_bool_dtype(values))
    if column.kind in ("int", "float"):
        return bool(pd.api.types.is_numeric_dtype(values)) and not boolean
    wanted = str if column.kind == "str" else bool
    distinct = values.cat.categories if isinstance(values.dtype, pd.CategoricalDtype) else values.dropna().unique()
    return (boolean and wanted is bool) or all(isinstance(v, wanted) for v in distinct)


def _type(column: Column) -> str:
    return "Int64" if column.kind == "int" and column.nullable else _TYPES[column.kind]

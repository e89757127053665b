"""Import of any table as measurements of an op of the user's own, and the definition that such a table implies."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as pa

from tilewise.data._columns import measurement_columns
from tilewise.data._derived import with_rates
from tilewise.data.importers._convert import ARROW
from tilewise.data.importers._flat_tables import is_measurements
from tilewise.data.importers._ingest import ImportReport, TableFile, ingest_file
from tilewise.data.importers._reader import Loss, cut
from tilewise.data.importers.own_op._column_choice import UNITS, StatedColumns, choose_columns, define_op
from tilewise.data.importers.own_op._generic_rows import LATENCY, first_line_number, read_rows
from tilewise.errors import ConfigError, DataError, UsageError
from tilewise.kernels import BACKEND_COLUMN, backend_of_target, kernel_type
from tilewise.ops import OPS, OpDefinition, Target, definition_of

Row = dict[str, object]
Floats = npt.NDArray[np.float64]


def define_from_table(
    path: Path, op: str, stated: StatedColumns, expressions: Mapping[str, str]
) -> tuple[OpDefinition, StatedColumns]:
    """Return the definition of an op whose measurements a table has, and the table's columns.

    Args:
        path: a table, see :func:`ingest_own_op`.
        op: the op's name.
        stated: the columns that the user names.
        expressions: text fields of the definition, such as ``flops``.

    Raises:
        DataError: the table cannot be read, or its columns cannot be told apart.
        ConfigError: a name or an expression breaks a rule of definitions.
    """
    frame = read_rows(path, stated.problem)
    columns = choose_columns(frame, stated, str(path))
    return define_op(op, frame, columns, expressions), columns


def ingest_own_op(path: Path, target: Target, output: Path, stated: StatedColumns) -> ImportReport:
    """Import a table with the columns of the target's definition and a latency.

    Repeated rows of a problem and configuration are samples: their median counts. A row without a positive latency is a
    configuration that failed. Other columns are ignored.

    Args:
        path: CSV, TSV, JSON records (plain or gzip), parquet, a folder of ``triton.autotune``'s caches, or a
            measurement table.
        target: a target of an op of the user's own.
        output: the parquet file to write.
        stated: the column of the latency and its unit, where their names do not tell.

    Raises:
        DataError: the table cannot be read, lacks a column, or has no row that can be imported; the output exists.
    """
    definition = definition_of(target.op)
    if definition is None:
        raise ConfigError(f"{target.op} is built in, so its tables have fixed columns; leave out problem= and config=")
    if output.exists():
        raise DataError(f"{output} exists already; earlier results are never overwritten, choose another output")
    if path.suffix == ".parquet" and path.is_file() and is_measurements(path):
        return ingest_file(path, target, output)
    frame = read_rows(path, definition.problem_names)
    own = StatedColumns(definition.problem_names, definition.config_names, stated.latency, stated.unit)
    columns = choose_columns(frame, own, str(path))
    frame = frame.assign(**{LATENCY: _milliseconds(frame[columns.latency], UNITS[columns.unit], path)})
    report = ImportReport(output, f"table with {columns.latency} in {columns.unit}", f"rows of {target.name}")
    fields = measurement_columns(target.op, backend_of_target(target).name)
    schema = pa.schema([pa.field(c.name, ARROW[c.kind], c.nullable) for c in fields])
    with TableFile(report, schema) as file:
        rows, losses = _measurements(frame, definition, target, _provenance(path, frame), first_line_number(path))
        file.add(_arrow(rows, schema) if len(rows) else None, losses)
        none = f"{path}: no measurement of {len(losses)} can be imported: {losses[0].reason}" if not len(rows) else ""
        file.finish(none)
    return report


def _arrow(rows: pd.DataFrame, schema: pa.Schema) -> pa.Table:
    texts = {field.name for field in schema if pa.types.is_dictionary(field.type)}
    plain = pa.schema([pa.field(f.name, pa.string()) if f.name in texts else f for f in schema])
    table = pa.Table.from_pandas(rows[schema.names].astype(dict.fromkeys(texts, object)), plain, preserve_index=False)
    return table.cast(schema)


def _milliseconds(values: pd.Series, factor: float, path: Path) -> Floats:
    """Return latencies in milliseconds; NaN for texts, infinite and not positive ones.

    Raises:
        DataError: no value is positive, as in a column that holds something else.
    """
    ms = pd.to_numeric(values, errors="coerce").to_numpy(dtype=np.float64) * factor
    if not (ms > 0).any() and values.notna().any():
        raise DataError(
            f"{path}: column {values.name} has no positive number, but '{values.dropna().iloc[0]}', say; "
            "name the column of the latency, as in latency=ms"
        )
    return np.where(np.isfinite(ms) & (ms > 0), ms, np.nan)


def _provenance(path: Path, frame: pd.DataFrame) -> dict[str, str]:
    stem = re.sub(r"[^\w-]+", "_", path.name.split(".")[0]) or "import"
    digest = hashlib.sha256(frame.to_csv(index=False).encode()).hexdigest()
    return {"run_id": f"{stem}-{digest[:12]}", "origin": path.name, "regime": "imported"}


def _measurements(
    frame: pd.DataFrame, definition: OpDefinition, target: Target, provenance: Mapping[str, str], line: int
) -> tuple[pd.DataFrame, list[Loss]]:
    """Return one row for each sound problem and configuration, and the losses; `line` is the number of the first."""
    kernels = kernel_type(definition)

    def problem(row: Row) -> Row:
        return OPS[target.op].from_dict(row).to_dict()

    def config(row: Row) -> Row:
        kernel = kernels.from_dict(_exact(row))
        name = kernel.name(target.op, target.variant, target.dtype)
        return {**kernel.to_dict(), "kernel_name": name, BACKEND_COLUMN: target.op}

    problems = _Parsed(frame[list(definition.problem_names)], problem)
    configs = _Parsed(frame[list(definition.config_names)], config)
    reasons = np.where(problems.faults != "", problems.faults, configs.faults)
    reasons = np.where(reasons != "", reasons, _of_other_target(frame, target))
    losses = [
        Loss(line + i, str(reasons[i]), cut(str(frame.iloc[i].to_dict())))
        for i in np.flatnonzero(reasons != "").tolist()
    ]
    if len(losses) == len(frame):
        return pd.DataFrame(), losses
    samples = pd.DataFrame({"problem": problems.number, "config": configs.number, LATENCY: frame[LATENCY]})
    rows = _summary(samples[reasons == ""])
    parts = [problems.frame.loc[rows["problem"]], configs.frame.loc[rows["config"]], rows]
    joined = pd.concat([part.reset_index(drop=True) for part in parts], axis=1)
    constant = {name: getattr(target, name) for name in ("op", "variant", "dtype", "arch")} | dict(provenance)
    joined = with_rates(joined.assign(**constant), target.op)
    columns = measurement_columns(target.op, target.op)
    return joined.reindex(columns=[c.name for c in columns]), losses


def _of_other_target(frame: pd.DataFrame, target: Target) -> npt.NDArray[np.object_]:
    """Return why each row is of another type or arch than the target's, "" where none is stated, of shape (rows,)."""
    reasons = np.full(len(frame), "", dtype=object)
    for name in ("dtype", "arch"):
        if name in frame:
            stated, own = frame[name].astype(str), getattr(target, name)
            reasons[(stated != own).to_numpy()] = f"{name} is "
            reasons += np.where(stated != own, [f"{text!r}, the target is of {own}" for text in stated], "")
    return reasons


class _Parsed:
    """The distinct rows of some columns, each parsed once.

    Attributes:
        number: of each row's distinct one, of shape (rows,).
        faults: why a row cannot be parsed, "" if it can, of shape (rows,).
        frame: the parsed rows, indexed by number.
    """

    def __init__(self, columns: pd.DataFrame, parse: Callable[[Row], Row]) -> None:
        keys = pd.MultiIndex.from_frame(columns.astype(object).where(columns.notna(), None).astype(str))
        self.number, _ = pd.factorize(keys)
        first = np.unique(self.number, return_index=True)[1]
        faults, parsed = [], {}
        for number, row in enumerate(columns.iloc[first].to_dict("records")):
            try:
                parsed[number] = parse({str(name): _plain(value, str(name)) for name, value in row.items()})
                faults.append("")
            except UsageError as e:
                faults.append(str(e))
        self.faults = np.array(faults, dtype=object)[self.number]
        self.frame = pd.DataFrame.from_dict(parsed, orient="index")


def _plain(value: object, name: str) -> object:
    """Return a cell as Python's own type: a column with an empty cell arrives as floats, so 3.0 is the integer 3."""
    if isinstance(value, np.generic):
        value = value.item()
    if value is None or value != value:
        raise DataError(f"{name} is empty")
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _exact(row: Row) -> Row:
    """Refuse cells that reading a kernel would convert: 1.5 to 1, and "64" to 64."""
    for name, value in row.items():
        if isinstance(value, float):
            raise DataError(f"{name} must be a whole number, a flag or a text, got {value!r}")
    return row


def _summary(samples: pd.DataFrame) -> pd.DataFrame:
    """Return the statistics of each problem and configuration, in the order of first appearance."""
    groups = samples.groupby(["problem", "config"], sort=False)[LATENCY]
    rows = groups.agg(latency_ms="median", latency_min_ms="min", repeats="count")
    percentiles = groups.quantile([0.2, 0.8]).unstack()
    rows = rows.assign(latency_p20_ms=percentiles[0.2], latency_p80_ms=percentiles[0.8]).reset_index()
    valid, spread = rows[LATENCY].notna(), ["latency_min_ms", "latency_p20_ms", "latency_p80_ms"]
    rows[spread] = rows[spread].where(rows["repeats"] > 1)
    return rows.assign(
        is_valid=valid,
        status=np.where(valid, "ok", "runtime_error"),
        error=pd.Series("the table has no latency", rows.index, dtype=object).mask(valid, None),
        repeats=rows["repeats"].where(valid).astype("Int64"),
    )

"""Import of one file: it is recognised, read, converted and written; losses are counted and kept beside the output."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from tilewise.data.importers._ck_csv import read_csv
from tilewise.data.importers._ck_json import read_json
from tilewise.data.importers._ck_log import read_log
from tilewise.data.importers._convert import Converter
from tilewise.data.importers._find_db import SCHEMA, SolverConverter, device_of_name, read_find_db
from tilewise.data.importers._flat_tables import is_measurements, read_table
from tilewise.data.importers._hardware import read_hardware
from tilewise.data.importers._own_tables import read_own
from tilewise.data.importers._reader import Block, Reader
from tilewise.data.importers._source import Format, Source, content_hash, recognise
from tilewise.data.importers._table_file import ImportReport, TableFile, Tables
from tilewise.errors import DataError
from tilewise.ops import Target

Progress = Callable[[int, int], None]  # called with the amount done and the total


def ingest_file(
    path: Path, target: Target, output: Path, progress: Progress | None = None, hardware: Path | None = None
) -> ImportReport:
    """Import a file of measurements as a table of `target`, or a find database as a table of all its targets.

    Args:
        path: CK Tile's benchmark CSV, benchmark JSON or streaming log, or MIOpen's find database (gzip, bzip2 or
            plain), or a parquet table.
        target: target of its rows. No such file states the arch; op, variant and dtype must agree with the file. Unused
            for a find database, whose lines and name state all of these.
        output: the parquet file to write.
        progress: called with the bytes read (rows of a parquet file) and their total.
        hardware: a JSON file with the properties of the GPU that measured, see :func:`read_hardware`; None: unknown.

    Raises:
        DataError: the output exists, the input has an unknown format, no part of it can be imported, the hardware does
            not fit the target, or the input states its hardware itself.
        ConfigError: the arch has no profile.
    """
    if output.exists():
        raise DataError(f"{output} exists already; earlier results are never overwritten, choose another output")
    with Source(path, progress) as source:
        kind = recognise(source)
        run_id = run_id_of(path)
        if hardware is not None and (kind == "find database" or (kind == "parquet" and is_measurements(path))):
            raise DataError(f"{path}: a {kind} states its GPU itself; leave out hardware={hardware}")
        if kind == "find database":
            return _ingest_find_db(source, output, run_id)
        gpu = read_hardware(hardware, target.arch) if hardware is not None else {}
        convert = Converter(target, run_id, path.name, gpu)
        report = ImportReport(output, kind, f"rows of {target.name}")
        with TableFile(report, convert.schema) as out:
            out.write(source, _tables(kind, source, target, convert, progress))
            others = f"no kernel belongs to {target.name}; the file holds {', '.join(sorted(convert.others))}"
            out.finish(_failure(path, report, others if convert.others else ""))
    return report


def _ingest_find_db(source: Source, output: Path, run_id: str) -> ImportReport:
    arch, compute_units = device_of_name(source.path)
    convert = SolverConverter(arch, compute_units, run_id, source.path.name)
    report = ImportReport(output, "find database", f"times of MIOpen's solvers on {arch}")
    with TableFile(report, SCHEMA) as out:
        out.write(source, read_find_db(source, convert))
        out.finish(_failure(source.path, report))
    return report


def _tables(kind: Format, source: Source, target: Target, convert: Converter, progress: Progress | None) -> Tables:
    if kind == "parquet" and is_measurements(source.path):
        yield from read_own(source.path, target, convert, progress)
        return
    for block in _reader(kind, source, target, progress):
        table, losses = convert(block.records) if block.records is not None else (None, [])
        yield table, block.losses + losses


def _reader(kind: Format, source: Source, target: Target, progress: Progress | None) -> Reader:
    if kind == "parquet":
        return read_table(source.path, target, progress)
    readers: dict[str, Callable[[Source, Target], Iterator[Block]]] = {
        "csv": read_csv,
        "json": read_json,
        "log": read_log,
    }
    return readers[kind](source, target)


def _failure(path: Path, report: ImportReport, others: str = "") -> str:
    """Return the reason why an import without any row failed, "" if it did not fail.

    Args:
        path: the input.
        report: the report of the import.
        others: the reason if the kernels of the file belong to other targets, else "".
    """
    if report.rows or not report.lost:
        return ""
    if others:
        return f"{path}: {others}"
    reason, count = report.kinds.most_common(1)[0]
    first = report.first[reason][0]
    return (
        f"{path}: no measurement of {report.lost} can be imported; line {first.line}: {first.reason} ({count} like it)"
    )


def run_id_of(path: Path) -> str:
    """Return the run of a file's rows: its name without endings, in characters that a run may have, and its hash."""
    stem = re.sub(r"[^\w-]+", "_", path.name.split(".")[0]) or "import"
    return f"{stem}-{content_hash(path)[:12]}"

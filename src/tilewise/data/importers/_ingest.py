"""Import of one file: it is recognised, read, converted and written; losses are counted and kept beside the output."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import pyarrow as pa
import pyarrow.parquet as pq

from tilewise.data.importers._ck_csv import read_csv
from tilewise.data.importers._ck_json import read_json
from tilewise.data.importers._ck_log import read_log
from tilewise.data.importers._convert import Converter
from tilewise.data.importers._find_db import SCHEMA, SolverConverter, device_of_name, read_find_db
from tilewise.data.importers._flat_tables import is_measurements, read_table
from tilewise.data.importers._hardware import read_hardware
from tilewise.data.importers._own_tables import read_own
from tilewise.data.importers._reader import Block, Loss, Reader
from tilewise.data.importers._source import Format, Source, content_hash, recognise
from tilewise.errors import DataError
from tilewise.ops import Target

Progress = Callable[[int, int], None]  # called with the amount done and the total

Tables = Iterator[tuple[pa.Table | None, list[Loss]]]  # the rows and losses of one stretch of a file

ROW_GROUP = 1 << 17
SHOWN = 5  # losses of each kind that a report holds
MAX_KINDS = 100


@dataclass
class ImportReport:
    """The result of an import.

    Attributes:
        path: the table.
        format: format of the input.
        contents: a description of the rows: the target, or the solvers of a GPU.
        rows, valid: number of rows and of valid rows in the table.
        lost: number of parts of the input that could not be imported.
        kinds: number of losses by kind: their reason, with figures replaced by #.
        first: the first few losses of each kind.
        quarantine: the file of all losses; None if there are no losses.
    """

    path: Path
    format: str
    contents: str
    rows: int = 0
    valid: int = 0
    lost: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    first: dict[str, list[Loss]] = field(default_factory=dict)
    quarantine: Path | None = None

    @property
    def parts(self) -> int:
        """Number of measurements in the input, intact or not."""
        return self.rows + self.lost

    def lose(self, loss: Loss) -> None:
        """Count a loss."""
        kind = re.sub(r"'[^']*'", "'...'", re.sub(r"\b\d[\d.e+-]*", "#", loss.reason))
        if kind not in self.kinds and len(self.kinds) >= MAX_KINDS:
            kind = "other reasons"
        self.lost += 1
        self.kinds[kind] += 1
        first = self.first.setdefault(kind, [])
        if len(first) < SHOWN:
            first.append(loss)


def quarantine_path(output: Path) -> Path:
    """Return the file for the losses of an import to `output`: JSON lines with line, reason and text."""
    return output.with_suffix(".quarantined.jsonl")


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
        run_id = f"{_stem(path)}-{content_hash(path)[:12]}"
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


def _stem(path: Path) -> str:
    """Return the file's name without endings, in characters that a run's name may have."""
    return re.sub(r"[^\w-]+", "_", path.name.split(".")[0]) or "import"


class TableFile:
    """Writer of the table and the quarantine, which appear only when finished; use it as a context manager."""

    def __init__(self, report: ImportReport, schema: pa.Schema) -> None:
        self._report = report
        self._waiting: list[pa.Table] = []
        self._part_file = _part_file(report.path)
        self._lost_path = quarantine_path(report.path)
        self._lost_part_file = _part_file(self._lost_path)
        self._lost: IO[str] | None = None
        report.path.parent.mkdir(parents=True, exist_ok=True)
        # Without a stored schema, columns of codes read back as plain strings.
        try:
            self._writer = pq.ParquetWriter(
                self._part_file, schema, compression="zstd", write_page_checksum=True, store_schema=False
            )
        except OSError:
            self._part_file.unlink(missing_ok=True)
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        with ExitStack() as cleanup:  # on a full disk closing fails, and the part files must go all the same
            cleanup.callback(self._part_file.unlink, missing_ok=True)
            cleanup.callback(self._lost_part_file.unlink, missing_ok=True)
            if self._lost is not None:
                cleanup.callback(self._lost.close)
            if self._writer.is_open:
                self._writer.close()

    def write(self, source: Source, tables: Tables) -> None:
        """Add all rows and losses of a source, and its fault if it is damaged."""
        for table, losses in tables:
            self.add(table, losses)
        if source.fault:
            self.add(None, [Loss(-1, source.fault, "")])

    def add(self, table: pa.Table | None, losses: list[Loss]) -> None:
        """Add rows and losses."""
        if table is not None and table.num_rows:
            self._report.rows += table.num_rows
            self._report.valid += table["is_valid"].to_numpy().sum().item()
            self._waiting.append(table)
            if sum(t.num_rows for t in self._waiting) >= ROW_GROUP:
                self._write()
        for loss in losses:
            self._report.lose(loss)
            if self._lost is None:
                self._lost = self._lost_part_file.open("w", encoding="utf-8")
            self._lost.write(json.dumps({"line": loss.line, "reason": loss.reason, "text": loss.text}) + "\n")

    def finish(self, fault: str) -> None:
        """Put both files in place. With a `fault`, put only the quarantine in place and raise a DataError."""
        self._write()
        self._writer.close()
        self._lost_path.unlink(missing_ok=True)
        if self._lost is not None:
            self._lost.close()
            self._lost_part_file.replace(self._lost_path)
            self._report.quarantine = self._lost_path
        if fault:
            raise DataError(f"{fault}; {self._lost_path} lists all")
        try:
            os.link(self._part_file, self._report.path)  # unlike renaming, linking never replaces a file
        except FileExistsError as e:
            raise DataError(
                f"{self._report.path} exists already; it is never overwritten, choose another output"
            ) from e

    def _write(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting).unify_dictionaries())
        self._waiting.clear()


def _part_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")

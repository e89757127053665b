"""One imported file: recognised, read, converted, written aside; what is lost is counted and kept beside the output."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self

import pyarrow as pa
import pyarrow.parquet as pq

from tilewise.data.importers._base import Block, Loss, Reader
from tilewise.data.importers.ck_csv import read_csv
from tilewise.data.importers.ck_json import read_json
from tilewise.data.importers.ck_log import read_log
from tilewise.data.importers.convert import Converter
from tilewise.data.importers.own import read_own
from tilewise.data.importers.source import Format, Source, content_hash, recognise
from tilewise.data.importers.tables import is_measurements, read_table
from tilewise.errors import DataError
from tilewise.ops import Target

Progress = Callable[[int, int], None]  # how much is done, of how much

ROW_GROUP = 1 << 17
SHOWN = 5  # losses of each kind that a report remembers
MAX_KINDS = 100


@dataclass
class Report:
    """What an import left behind.

    Attributes:
        path: the table.
        format: of the input.
        rows, valid: of the table.
        lost: how many parts of the input did not come through.
        kinds: of their reasons, with figures replaced by #: how many.
        first: the first few of each kind.
        quarantine: where they all are, None where nothing was lost.
    """

    path: Path
    format: str
    rows: int = 0
    valid: int = 0
    lost: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    first: dict[str, list[Loss]] = field(default_factory=dict)
    quarantine: Path | None = None

    @property
    def parts(self) -> int:
        """Measurements that the input holds, whole or not."""
        return self.rows + self.lost

    def lose(self, loss: Loss) -> None:
        """Count a loss."""
        kind = re.sub(r"'[^']*'", "'...'", re.sub(r"\d[\d.e+-]*", "#", loss.reason))
        if kind not in self.kinds and len(self.kinds) >= MAX_KINDS:
            kind = "other reasons"
        self.lost += 1
        self.kinds[kind] += 1
        first = self.first.setdefault(kind, [])
        if len(first) < SHOWN:
            first.append(loss)


def quarantine_path(output: Path) -> Path:
    """Where the losses of an import to `output` are kept: JSON lines of line, reason and text."""
    return output.with_suffix(".quarantined.jsonl")


def ingest(path: Path, target: Target, output: Path, progress: Progress | None = None) -> Report:
    """Import a file of measurements as a table of `target`.

    Args:
        path: CK Tile's benchmark CSV, benchmark JSON or streaming log (gzip or not), or a parquet table.
        target: what its rows are of. The arch stands in no such file; the rest must agree with it.
        output: the parquet file to write.
        progress: told how many bytes (rows of a parquet file) are read.

    Raises:
        DataError: the output exists, the input is of no known format, of another target, or nothing in it is whole.
        ConfigError: the arch has no profile.
    """
    if output.exists():
        raise DataError(f"{output} exists already; earlier results are never overwritten, choose another output")
    with Source(path, progress) as source:
        kind = recognise(source)
        run_id = f"{_stem(path)}-{content_hash(path)[:12]}"
        convert = Converter(target, run_id, path.name)
        report = Report(output, kind)
        with _Output(report, convert.schema) as out:
            for table, losses in _tables(kind, source, target, convert, progress):
                out.add(table, losses)
            if source.fault:
                out.add(None, [Loss(-1, source.fault, "")])
            out.finish(_nothing_whole(path, report, convert, target))
    return report


def _tables(
    kind: Format, source: Source, target: Target, convert: Converter, progress: Progress | None
) -> Iterator[tuple[pa.Table | None, list[Loss]]]:
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


def _nothing_whole(path: Path, report: Report, convert: Converter, target: Target) -> str:
    """Why an import without a single row is none, "" where all is well."""
    if report.rows or not report.lost:
        return ""
    if convert.others:
        return f"{path}: no kernel of {target.name} in it; it holds {', '.join(sorted(convert.others))}"
    reason, count = report.kinds.most_common(1)[0]
    first = report.first[reason][0]
    return f"{path}: none of its {report.lost} parts is whole; line {first.line}: {first.reason} ({count} like it)"


def _stem(path: Path) -> str:
    """The file's name without endings, in letters that a run's name may have."""
    return re.sub(r"[^\w-]+", "_", path.name.split(".")[0]) or "import"


class _Output:
    """The table and the quarantine in the making; both appear only when finished."""

    def __init__(self, report: Report, schema: pa.Schema) -> None:
        self._report = report
        self._waiting: list[pa.Table] = []
        self._aside = _aside(report.path)
        self._lost_path = quarantine_path(report.path)
        self._lost_aside = _aside(self._lost_path)
        self._lost: IO[str] | None = None
        report.path.parent.mkdir(parents=True, exist_ok=True)
        # The schema is not stored: a column of codes reads back as what it stands for.
        self._writer = pq.ParquetWriter(
            self._aside, schema, compression="zstd", write_page_checksum=True, store_schema=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._writer.is_open:
            self._writer.close()
        if self._lost is not None:
            self._lost.close()
        self._aside.unlink(missing_ok=True)
        self._lost_aside.unlink(missing_ok=True)

    def add(self, table: pa.Table | None, losses: list[Loss]) -> None:
        """Rows and losses, as they come."""
        if table is not None and table.num_rows:
            self._report.rows += table.num_rows
            self._report.valid += table["is_valid"].to_numpy().sum().item()
            self._waiting.append(table)
            if sum(t.num_rows for t in self._waiting) >= ROW_GROUP:
                self._write()
        for loss in losses:
            self._report.lose(loss)
            if self._lost is None:
                self._lost = self._lost_aside.open("w", encoding="utf-8")
            self._lost.write(json.dumps({"line": loss.line, "reason": loss.reason, "text": loss.text}) + "\n")

    def finish(self, fault: str) -> None:
        """Put both files in place; with a `fault` only the quarantine, and raise it as a DataError."""
        self._write()
        self._writer.close()
        self._lost_path.unlink(missing_ok=True)
        if self._lost is not None:
            self._lost.close()
            self._lost_aside.replace(self._lost_path)
            self._report.quarantine = self._lost_path
        if fault:
            raise DataError(f"{fault}; {self._lost_path} has them all")
        try:
            os.link(self._aside, self._report.path)  # unlike renaming, linking never replaces
        except FileExistsError as e:
            raise DataError(
                f"{self._report.path} exists already; it is never overwritten, choose another output"
            ) from e

    def _write(self) -> None:
        if self._waiting:
            self._writer.write_table(pa.concat_tables(self._waiting).unify_dictionaries())
        self._waiting.clear()


def _aside(path: Path) -> Path:
    return path.with_name(f".{path.name}.{uuid.uuid4().hex}")

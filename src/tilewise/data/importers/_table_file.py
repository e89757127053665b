"""The output of an import: the table and the quarantine of losses, both written atomically, and the report."""

from __future__ import annotations

import json
import os
import re
import uuid
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import IO, Self, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from tilewise.data.importers._reader import Loss
from tilewise.data.importers._source import Source
from tilewise.errors import DataError

Tables: TypeAlias = Iterator[tuple[pa.Table | None, list[Loss]]]  # the rows and losses of one stretch of a file

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
        kind = re.sub(r"'[^']*'", "'...'", re.sub(r"\d[\d.e+-]*", "#", loss.reason))
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

"""Measurements of one target that outgrow memory: chunks of whole problems, checked as they are read."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pandas as pd

from tilewise._ahead import ahead
from tilewise.data._columns import PROGRAMS_COLUMN
from tilewise.data._derived import implied_columns
from tilewise.data._digest import begin_digest, digest_column
from tilewise.data._row_source import CHUNK_ROWS, FileSource, open_rows, row_count
from tilewise.data._schema import checked, read_measurements, to_measurements
from tilewise.data._target_table import TargetTable
from tilewise.ops import Target


@dataclass
class Measurements:
    """A prepared table in a file, which each pass reads again. The first one checks it, later ones trust it."""

    target: Target
    source: FileSource
    is_checked: bool = field(default=False, init=False)

    def __len__(self) -> int:
        return len(self.source)

    def chunks(self, columns: Collection[str] | None = None) -> Iterator[pd.DataFrame]:
        """Yield chunks of whole problems, with the rows that :func:`tilewise.data.read_measurements` gives.

        Args:
            columns: those to keep, of those that there are; None keeps all.

        Raises:
            DataError: a row breaks a rule; the message names the file and the row.
        """
        names = [column.name for column in self.source.columns if columns is None or column.name in columns]
        if self.is_checked:
            stored = (self.source.stored(names, rows) for rows in self.source.chunks())
            yield from ahead(pd.concat(list(parts), ignore_index=True) for parts in stored)
            return
        for raw in ahead(self.source):
            yield to_measurements(checked(raw), self.source.tags, names)
        self.is_checked = True

    @property
    def content_hash(self) -> str:
        """The hash that :func:`tilewise.data.table_hash` gives for all rows; reads column by column."""
        implied = implied_columns(self.target.op, self.source.backend)
        unused = set(implied) - self.source.used(implied, np.ones(len(self), dtype=bool))
        digest = begin_digest(len(self))
        for column in self.source.columns:
            if column.name not in unused:
                parts = self.source.stored([column.name], np.ones(len(self), dtype=bool))
                digest_column(digest, column.name, [part[column.name] for part in parts])
        return digest.hexdigest()


def open_measurements(path: Path, target: Target, chunk_rows: int = CHUNK_ROWS) -> pd.DataFrame | Measurements:
    """Read the measurements of a target, or open them where they are a prepared table of many rows.

    Args:
        path: as for :func:`tilewise.data.read_measurements`.
        target: the target.
        chunk_rows: rows to hold in memory with all columns. Other tables are read as a whole: several files, files of
            several targets, and files that lack columns.

    Raises:
        DataError: as for :func:`tilewise.data.read_measurements`; for an opened table only while it is read.
    """
    if path.is_file() and row_count(path) > chunk_rows:
        source = open_rows(path, target, chunk_rows)
        if isinstance(source, FileSource) and source.is_complete:
            return Measurements(target, source)
    return read_measurements(path, target)


def chunks_of(
    rows: pd.DataFrame | Measurements, target: Target, columns: tuple[str, ...] | None = None
) -> Iterator[TargetTable]:
    """Yield the rows of `target` in parts of whole problems; a table in memory is one part.

    Args:
        rows: a measurement table that may hold other targets, or opened measurements of `target`.
        target: the target.
        columns: those to keep besides the version of the programs, of those that there are; None keeps all.
    """
    columns = None if columns is None else (*columns, PROGRAMS_COLUMN)
    if isinstance(rows, pd.DataFrame):
        yield TargetTable.of(rows if columns is None else rows[[name for name in columns if name in rows]], target)
    else:
        yield from (TargetTable.of(chunk, target) for chunk in rows.chunks(columns))

"""Raw rows of a target as chunks of whole problems, so that a table that outgrows memory is read piece by piece.

Rows are numbered in the order of the files. Chunks take problems in the order of their first rows, so a row group is
read about once where files are sorted by problem, as measuring writes them.
"""

from __future__ import annotations

import zlib
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as arrow
import pyarrow.parquet as pq

from tilewise.data._backends import backend_of_frame, joined, tags_of, widened
from tilewise.data._columns import TARGET_COLUMNS, Column, table_columns
from tilewise.data._derived import holds_only, implied_columns, with_constants
from tilewise.data._rows import is_of, taken
from tilewise.data._schema import (
    backend_tags,
    open_groups,
    open_table,
    other_targets,
    parquet_files,
    read_raw_measurements,
    rows_of,
    typed,
    typed_columns,
)
from tilewise.errors import DataError
from tilewise.kernels import BACKEND_COLUMN, Backend, KernelValue, backend_of_columns, together
from tilewise.ops import OPS, Target

CHUNK_ROWS = 4_000_000  # rows in memory with all columns, about 1 KB each while they are checked

_Ints = npt.NDArray[np.int64]
_Codes = npt.NDArray[np.int32]
_Hashes = npt.NDArray[np.uint64]
_Bools = npt.NDArray[np.bool_]

_PRIME = np.uint64(0x9E3779B97F4A7C15)  # odd, so that multiplying loses nothing


class RowSource(Protocol):
    """Raw rows of one target, numbered from 0."""

    @property
    def tags(self) -> Collection[str]:
        """Backends that the rows name."""

    @property
    def backend(self) -> Backend:
        """The backend of all kernels; a mixture for those of several."""

    def __len__(self) -> int: ...

    def __iter__(self) -> Iterator[pd.DataFrame]:
        """Yield chunks of whole problems, indexed by the rows' numbers, ascending."""

    def select(self, rows: _Bools) -> Iterator[pd.DataFrame]:
        """Yield the rows selected by a mask of shape (rows,), in order and in parts."""

    def used(self, defaults: Mapping[str, KernelValue | None], rows: _Bools) -> set[str]:
        """Return the columns in which a row selected by a mask has another value than this."""


@dataclass(frozen=True)
class FrameSource:
    """Rows in memory: one chunk."""

    frame: pd.DataFrame

    @classmethod
    def of(cls, frame: pd.DataFrame, target: Target) -> FrameSource:
        """Return the rows of `target` in a table that may hold other targets."""
        return cls(taken(frame, is_of(frame, target)).reset_index(drop=True))

    @property
    def tags(self) -> Collection[str]:
        """Backends that the rows name."""
        return tags_of(self.frame)

    @property
    def backend(self) -> Backend:
        """The backend of all kernels."""
        return backend_of_frame(self.frame)

    def __len__(self) -> int:
        return len(self.frame)

    def __iter__(self) -> Iterator[pd.DataFrame]:
        yield self.frame

    def select(self, rows: _Bools) -> Iterator[pd.DataFrame]:
        """Yield the selected rows."""
        yield taken(self.frame, rows)

    def used(self, defaults: Mapping[str, KernelValue | None], rows: _Bools) -> set[str]:
        """Return the columns in which a selected row has another value than this."""
        frame = taken(self.frame, rows)
        return {name for name, value in defaults.items() if name in frame and not holds_only(frame[name], value)}


def open_rows(path: Path, target: Target, chunk_rows: int = CHUNK_ROWS) -> RowSource:
    """Return the raw rows of `target` in a file, or in all files of a folder.

    Args:
        path: as for :func:`tilewise.data.read_raw_measurements`.
        target: the target.
        chunk_rows: rows to hold in memory; if the target's files have no more, they are read as a whole. One row group,
            and all rows of one problem, must fit in addition.

    Raises:
        DataError: as for :func:`tilewise.data.read_raw_measurements`. Reading chunks raises it for files that are
            damaged beyond their first columns.
    """
    # Files of other targets do not count: a folder of many small targets is no reason to read any in chunks.
    files = [file for file in parquet_files(Path(path)) if not other_targets(file, target)]
    if sum(row_count(file) for file in files) <= chunk_rows:
        return FrameSource(read_raw_measurements(path, target))
    codes = _Numbering()
    groups, numbers = list[_Group](), list[_Codes]()
    for file in files:
        for group, hashes in _scan(file, target):
            groups.append(group)
            numbers.append(codes.of(hashes))
    if not groups:
        return FrameSource(read_raw_measurements(path, target))  # raises: it tells which targets there are
    problem = np.concatenate(numbers)
    # Problems with more rows than a chunk leave numbers out.
    chunk = np.unique(np.cumsum(np.bincount(problem)) // chunk_rows, return_inverse=True)[1]
    return FileSource(target, tuple(groups), chunk.astype(np.int32)[problem])


@dataclass(frozen=True)
class _Group:
    """The rows of the target in one row group.

    Attributes:
        file, number: the row group.
        first: number of its first row in the file.
        rows: the target's rows in it; None for all of them.
        n_rows: their number.
        tags: backends that the rows of the file name.
        backend: of the file's kernels.
    """

    file: Path
    number: int
    first: int
    rows: _Ints | None
    n_rows: int
    tags: frozenset[str]
    backend: Backend


@dataclass(frozen=True)
class FileSource:
    """Rows in files.

    Attributes:
        target: the target of all rows.
        groups: the row groups that hold them.
        chunk: number of each row's chunk, of shape (rows,).
    """

    target: Target
    groups: tuple[_Group, ...]
    chunk: _Codes

    @property
    def tags(self) -> Collection[str]:
        """Backends that the rows name."""
        return {tag for group in self.groups for tag in group.tags}

    @property
    def backend(self) -> Backend:
        """The backend of all kernels."""
        return together([group.backend for group in self.groups])

    def __len__(self) -> int:
        return len(self.chunk)

    def __iter__(self) -> Iterator[pd.DataFrame]:
        for rows in self.chunks():
            yield joined(list(self.select(rows)))

    def chunks(self) -> Iterator[_Bools]:
        """Yield the mask of each chunk's rows."""
        return (self.chunk == chunk for chunk in range(int(self.chunk.max()) + 1))

    def select(self, rows: _Bools) -> Iterator[pd.DataFrame]:
        """Yield the selected rows, row group by row group."""
        mixed = self.backend
        for group, places, numbers in self._places(rows):
            table, op = open_table(group.file, group.number)
            frame = typed(table, str(op), group.file, places, group.first, group.tags)
            yield widened(frame, group.backend, mixed).set_axis(numbers)

    @property
    def columns(self) -> tuple[Column, ...]:
        """The columns of all rows as one table."""
        return table_columns(self.target.op, pq.read_schema(self.groups[0].file).names, self.tags)

    @property
    def is_complete(self) -> bool:
        """True for one file that holds these rows alone, with every column that does not have defaults only."""
        stored = pq.read_schema(self.groups[0].file).names
        later = implied_columns(self.target.op, self.backend)
        is_one = all(g.file == self.groups[0].file and g.rows is None for g in self.groups)
        return is_one and {c.name for c in self.columns} <= {*stored, *later}

    def stored(self, names: Collection[str], rows: _Bools) -> Iterator[pd.DataFrame]:
        """Yield columns of a complete file for the selected rows, in the table's types, row group by row group."""
        columns, implied = self.columns, implied_columns(self.target.op, self.backend)
        for group, places, _ in self._places(rows):
            stored = pq.read_schema(group.file).names
            found = [column for column in columns if column.name in names and column.name in stored]
            left_out = {n: value for n, value in implied.items() if n in names and n not in stored}
            yield with_constants(typed_columns(group.file, group.number, found, places), left_out)

    def used(self, defaults: Mapping[str, KernelValue | None], rows: _Bools) -> set[str]:
        """Return the columns in which a selected row has another value than this; reads these columns only."""
        found = set[str]()
        for group, places, _ in self._places(rows):
            source = pq.ParquetFile(group.file)
            names = [n for n in defaults if n in source.schema_arrow.names and n not in found]
            table = source.read_row_group(group.number, columns=names)
            found |= {n for n in names if set(table[n].take(places).unique().to_pylist()) != {defaults[n]}}
        return found

    def _places(self, rows: _Bools) -> Iterator[tuple[_Group, _Ints, _Ints]]:
        """Yield the row groups that hold selected rows, with these rows' places there, and their numbers."""
        start = 0
        for group in self.groups:
            wanted = np.flatnonzero(rows[start : start + group.n_rows])
            if len(wanted):
                yield group, wanted if group.rows is None else group.rows[wanted], start + wanted
            start += group.n_rows


def row_count(file: Path) -> int:
    """Return the number of rows of a file; 0 for one that is damaged, which reading tells."""
    try:
        return int(pq.read_metadata(file).num_rows)
    except (arrow.ArrowException, OSError, ValueError):
        return 0


def _scan(file: Path, target: Target) -> list[tuple[_Group, _Hashes]]:
    """Return the row groups with rows of `target`, and the hash of each row's problem.

    Raises:
        DataError: a column cannot be read.
    """
    names = [c.name for c in TARGET_COLUMNS] + [*OPS[target.op].column_names(), BACKEND_COLUMN]
    found, tags, first = list[tuple[int, int, _Ints | None, _Hashes]](), set[str](), 0
    try:
        source = open_groups(file)
        stored = source.schema_arrow.names
        for number in range(source.num_row_groups):
            table = source.read_row_group(number, columns=[n for n in names if n in stored]).unify_dictionaries()
            tags |= backend_tags(table, file)
            rows = rows_of(table, target)
            if len(rows):
                whole = len(rows) == len(table)
                hashes = _hashes(table if whole else table.take(rows), target.op)
                found.append((number, first, None if whole else rows, hashes))
            first += len(table)
    except (arrow.ArrowException, OSError, KeyError, ValueError) as e:
        raise DataError(f"{file}: not a readable measurement table: {str(e).splitlines()[0]}") from e
    backend = backend_of_columns(stored, tags)
    return [
        (_Group(file, number, start, rows, len(hashes), frozenset(tags), backend), hashes)
        for number, start, rows, hashes in found
    ]


class _Numbering:
    """Numbers of distinct hashes, by first appearance among the parts."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def of(self, hashes: _Hashes) -> _Codes:
        """Return the number of each hash, of shape (rows,)."""
        place, distinct = pd.factorize(hashes)
        numbers = [self._known.setdefault(value, len(self._known)) for value in distinct.tolist()]
        codes: _Codes = np.array(numbers, dtype=np.int32)[place]
        return codes


def _hashes(table: arrow.Table, op: str) -> _Hashes:
    """Return a hash of each row's problem, of shape (rows,). Two problems with one hash only share a chunk."""
    hashes, defaults = np.zeros(len(table), dtype=np.uint64), OPS[op].defaults()
    for name, kind in OPS[op].column_kinds().items():
        if name in table.column_names:
            values = _codes(table[name].combine_chunks(), kind)
        else:  # a later column, which the file may omit
            values = _codes(arrow.array([defaults[name]]), kind)
        hashes = (hashes ^ values) * _PRIME
        hashes ^= hashes >> np.uint64(29)
    return hashes


def _codes(column: arrow.Array, kind: str) -> _Hashes:
    """Return equal numbers for equal values, in whatever type a file stores them."""
    if kind == "int":
        return np.asarray(column.cast(arrow.float64()).fill_null(-1)).astype(np.int64).view(np.uint64)
    encoded = column if arrow.types.is_dictionary(column.type) else column.cast(arrow.string()).dictionary_encode()
    words = np.array([zlib.crc32((word or "").encode()) for word in [*encoded.dictionary.to_pylist(), ""]], np.uint64)
    codes: _Hashes = words[np.asarray(encoded.indices.fill_null(-1))]
    return codes

"""The contract of an importer: it turns a file into blocks of records and losses.

A *part* is one measurement in the format's notation: a line of a CSV, a JSON object of a log, a row of a parquet file.
An importer must turn every part into a record or a :class:`Loss`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tilewise.errors import KernelError
from tilewise.kernels.ck import name_with_split

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MAX_TEXT = 2000  # characters to keep of a lost part
EMPTY = int(np.iinfo(np.int64).min)  # an empty cell among integers


@dataclass(frozen=True)
class Loss:
    """A part that could not be imported.

    Attributes:
        line: its first line in a text, from 1; its row in a parquet file, from 0.
        reason: the rule that it breaks.
        text: the part itself, cut after :data:`MAX_TEXT` characters.
    """

    line: int
    reason: str
    text: str


@dataclass(frozen=True)
class Coded:
    """A column of repeating words: `codes`, of shape (rows,), index `words`."""

    codes: npt.NDArray[np.int32]
    words: tuple[str, ...]


@dataclass(frozen=True)
class Records:
    """Measurements as a file states them; all arrays have shape (rows,).

    Attributes:
        line: as in :class:`Loss`.
        kernel: the kernels' names.
        problem: problem columns; an op's optional ones may be missing. An empty cell is :data:`EMPTY` or "".
        latency_ms: NaN if the file does not state it.
        tflops: as stated; NaN if the file does not state it.
        outcomes: (status, error) by index, for rows that failed. A row without a positive latency need not be listed.
        text: function that returns the text of a row, for losses found later.
        faults: the reason why a row is no measurement, by index.
    """

    line: Ints
    kernel: Coded
    problem: Mapping[str, Ints | Coded]
    latency_ms: Floats
    tflops: Floats
    outcomes: Mapping[int, tuple[str, str]]
    text: Callable[[int], str]
    faults: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.line)


@dataclass
class Block:
    """The records and losses of one stretch of a file."""

    records: Records | None = None
    losses: list[Loss] = field(default_factory=list)


Reader = Iterator[Block]


def coded(words: Sequence[str]) -> Coded:
    """Encode words as codes."""
    place: dict[str, int] = {}
    codes = [place.setdefault(w, len(place)) for w in words]
    return Coded(np.array(codes, dtype=np.int32), tuple(place))


def number(value: object) -> float:
    """Convert a JSON number to a float; return NaN for any other value."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return float("nan")
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def split_name(name: str, split_k: object) -> tuple[str, str]:
    """Return the name of a CK Tile kernel that ran with a split of K, and the fault of that split, "" if it has none.

    The split is an argument of the launch. It becomes part of the name, so that the runs of one kernel with several
    splits are those of several candidates and do not contradict each other.

    Args:
        name: the kernel's name.
        split_k: the split that the file states; None if it states none, and the name decides.
    """
    if split_k is None:
        return name, ""
    if type(split_k) is not int or split_k < 1:
        return "", f"split_k must be a whole number of 1 or more, got {str(split_k)[:40]!r}"
    try:
        return _split_name(name, split_k), ""
    except KernelError as e:
        return "", str(e)


def split_names(kernel: Coded, split_k: Ints) -> tuple[Coded, dict[int, str]]:
    """Return the names of :func:`split_name` for a table's rows, and the faults by row.

    Args:
        kernel: the kernels' names, of shape (rows,).
        split_k: the stated splits, of shape (rows,); :data:`EMPTY` where a row states none.
    """
    pairs, row_pair = np.unique(np.stack([kernel.codes, split_k], axis=1), axis=0, return_inverse=True)
    row_pair = row_pair.reshape(-1)  # NumPy 2.0 keeps an axis
    found = [split_name(kernel.words[code], None if split == EMPTY else split) for code, split in pairs.tolist()]
    faulty = np.array([bool(fault) for _, fault in found], dtype=bool)[row_pair]
    names = coded([name for name, _ in found])
    return Coded(names.codes[row_pair], names.words), {
        i: found[row_pair[i]][1] for i in np.flatnonzero(faulty).tolist()
    }


_split_name = lru_cache(maxsize=1 << 16)(name_with_split)  # a file repeats the same names


def cut(text: str) -> str:
    """Return at most :data:`MAX_TEXT` characters of a text."""
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."

"""The contract of an importer: a file in some format -> blocks of records, and everything of it that was lost.

A *part* is one measurement as the format writes it: a line of a CSV, a JSON object of a log, a row of a parquet file.
Every part becomes a record or a :class:`Loss`; what is in neither is a fault of the importer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]

MAX_TEXT = 2000  # characters of a lost part that are kept
EMPTY = int(np.iinfo(np.int64).min)  # an empty cell among integers


@dataclass(frozen=True)
class Loss:
    """One part that did not come through.

    Attributes:
        line: where it begins: a line of a text, from 1; a row of a parquet file, from 0.
        reason: the rule that it breaks.
        text: the part itself, cut after :data:`MAX_TEXT` characters.
    """

    line: int
    reason: str
    text: str


@dataclass(frozen=True)
class Coded:
    """A column of words that repeat: `codes` (rows,) index `words`."""

    codes: npt.NDArray[np.int32]
    words: tuple[str, ...]


@dataclass(frozen=True)
class Records:
    """Measurements as a file states them; all arrays are of shape (rows,).

    Attributes:
        line: see :class:`Loss`.
        kernel: the kernels' names.
        problem: problem columns; an op's optional ones may be missing, an empty cell is :data:`EMPTY` or "".
        latency_ms: NaN where the file has none.
        tflops: as stated, NaN where the file has none.
        outcomes: rows that failed, index -> (status, error); a latency that is no positive number fails by itself.
        text: the text of a row, for a loss that shows only later.
    """

    line: Ints
    kernel: Coded
    problem: Mapping[str, Ints | Coded]
    latency_ms: Floats
    tflops: Floats
    outcomes: Mapping[int, tuple[str, str]]
    text: Callable[[int], str]

    def __len__(self) -> int:
        return len(self.line)


@dataclass
class Block:
    """What a reader found in one stretch of its file."""

    records: Records | None = None
    losses: list[Loss] = field(default_factory=list)


Reader = Iterator[Block]


def coded(words: Sequence[str]) -> Coded:
    """Words as codes."""
    place: dict[str, int] = {}
    codes = [place.setdefault(w, len(place)) for w in words]
    return Coded(np.array(codes, dtype=np.int32), tuple(place))


def number(value: Any) -> float:
    """A JSON number as a float, NaN for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return float("nan")
    try:
        return float(value)
    except OverflowError:
        return float("inf")


def cut(text: str) -> str:
    """`text`, at most :data:`MAX_TEXT` characters of it."""
    return text if len(text) <= MAX_TEXT else f"{text[:MAX_TEXT]}..."

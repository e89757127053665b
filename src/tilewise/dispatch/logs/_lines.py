"""Lenient reading of JSONL logs: a damaged line costs only itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from tilewise.errors import DataError, UsageError

T = TypeVar("T")

MOST_LINE_BYTES = 1 << 20  # longer lines count as damaged, because lines that tilewise writes take a few kilobytes


@dataclass(frozen=True)
class DamagedLine:
    """A line that cannot be read: its number, counted from 1, its bytes without the line end, and the reason."""

    number: int
    data: bytes
    reason: str


@dataclass(frozen=True)
class Lines(Generic[T]):
    """The parsed lines of a file in order, and its damaged lines."""

    values: list[T]
    damaged: list[DamagedLine]


def read_lines(path: str | Path, parse: Callable[[Mapping[str, Any]], T]) -> Lines[T]:
    """Parse each line of a JSONL file.

    Args:
        path: of the file.
        parse: turns the JSON object of a line into a value; a KeyError, TypeError, ValueError, AttributeError,
            OverflowError or UsageError means that the line is damaged.

    Raises:
        DataError: the file cannot be read.
    """
    lines: Lines[T] = Lines([], [])
    try:
        with Path(path).open("rb") as file:
            for number, line in enumerate(file, 1):
                data = line.rstrip(b"\r\n")
                try:
                    if len(data) > MOST_LINE_BYTES:
                        raise ValueError(f"longer than {MOST_LINE_BYTES} bytes")
                    values = json.loads(data)
                    if not isinstance(values, dict):
                        raise TypeError(f"must be a JSON object, got {type(values).__name__}")
                    lines.values.append(parse(values))
                except (UsageError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError) as e:
                    lines.damaged.append(DamagedLine(number, data, f"{e!s:.200}"))
                except RecursionError:
                    lines.damaged.append(DamagedLine(number, data, "nested too deeply"))
    except OSError as e:
        raise DataError(
            f"{path}: cannot be read: {e.strerror}; a dispatcher writes such logs (TILEWISE_RECORD, TILEWISE_JOURNAL)"
        ) from e
    return lines

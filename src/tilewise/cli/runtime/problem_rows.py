"""Files of many problems: CSV or JSON in, one row of results per problem out in either format."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tilewise.errors import DataError, ProblemError
from tilewise.ops import Problem, Target

ORIGIN = "origin"  # column of problem sets, which selecting does not need


def read_problems(path: Path, target: Target) -> list[Problem]:
    """Read the problems of a file, in order.

    Args:
        path: CSV with a header of dimensions, as problem sets have it (``#`` begins a comment line), or JSON: a list of
            objects, or an object whose ``problems`` is that list. Either may state ``dtype``; ``origin`` is ignored.
        target: target whose op the problems are of.

    Raises:
        DataError: the file cannot be read, has no problem, or a problem is impossible; the message names its place.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise DataError(f"{path}: cannot be read: {e}") from e
    rows = _json_rows(text, path) if path.suffix == ".json" else _csv_rows(text, path)
    problems = []
    for place, values in rows:
        try:
            problems.append(target.problem({name: v for name, v in values.items() if name != ORIGIN}))
        except ProblemError as e:
            raise DataError(f"{path}, {place}: {e}") from e
    if not problems:
        raise DataError(f"{path}: no problems; expected a CSV header and a line for each, or a JSON list of objects")
    return problems


def _json_rows(text: str, path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as e:
        raise DataError(f"{path}: not JSON: {e}") from e
    listed = values.get("problems") if isinstance(values, dict) else values
    if not isinstance(listed, list) or not all(isinstance(row, dict) for row in listed):
        raise DataError(f"{path}: must be a list of objects, or an object with such a list as 'problems'")
    return [(f"problem {number}", row) for number, row in enumerate(listed, 1)]


def _csv_rows(text: str, path: Path) -> list[tuple[str, Mapping[str, Any]]]:
    lines = [(n, line) for n, line in enumerate(text.splitlines(), 1) if line.strip() and not line.startswith("#")]
    table = list(csv.reader(line for _, line in lines))
    if not table:
        return []
    header = [name.strip() for name in table[0]]
    rows: list[tuple[str, Mapping[str, Any]]] = []
    for (number, _), cells in zip(lines[1:], table[1:], strict=True):
        if len(cells) != len(header):
            raise DataError(f"{path}, line {number}: {len(cells)} values, but the header has {len(header)} columns")
        named = {name: cell.strip() for name, cell in zip(header, cells, strict=True) if cell.strip()}
        rows.append((f"line {number}", {name: _value(cell) for name, cell in named.items()}))
    return rows


def _value(cell: str) -> int | str:
    try:
        return int(cell)
    except ValueError:
        return cell


def to_csv(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return rows with equal keys as CSV; None is an empty cell."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()

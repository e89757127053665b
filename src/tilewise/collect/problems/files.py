"""Problem sets as text: one problem a line, a column each for its origin and for every dimension.

A comment (lines that begin with ``#``), a header with the columns' names, then the problems. Dimensions that the op has
defaults for may be left out. Problems are measured in the order of the file.
"""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path

from tilewise.collect.plan import Item
from tilewise.errors import DataError, ProblemError
from tilewise.ops import OPS, Problem

ORIGIN = "origin"


def dumps(op: str, items: Sequence[Item], about: str) -> str:
    """The text of a problem set; columns that hold their default throughout are left out.

    Args:
        op: of :data:`tilewise.ops.OPS`.
        items: the problems, in order.
        about: the comment at the top: what the set is and where it comes from.
    """
    defaults = {f.name: f.default for f in dataclasses.fields(OPS[op])}
    rows = [item.problem.to_dict() for item in items]
    names = [n for n, default in defaults.items() if any(row[n] != default for row in rows)]
    text = io.StringIO()
    text.writelines(f"# {line}".rstrip() + "\n" for line in about.strip().splitlines())
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow((ORIGIN, *names))
    writer.writerows((item.origin, *(row[n] for n in names)) for item, row in zip(items, rows, strict=True))
    return text.getvalue()


def loads(text: str, op: str, source: str) -> tuple[Item, ...]:
    """The problems of a set's text, in its order.

    Args:
        text: as :func:`dumps` writes it.
        op: the op that the problems must be of.
        source: what errors call the text, e.g. its path.

    Raises:
        DataError: a column is unknown or missing, a line has the wrong number of values, no number where one belongs,
            an impossible problem or one that another line has already, or there are no problems; the message names
            `source` and line.
    """
    reader = csv.reader(line for line in io.StringIO(text, newline=""))
    names: list[str] | None = None
    line_of: dict[Problem, int] = {}
    items = []
    for values in reader:
        at = f"{source}, line {reader.line_num}"
        if not values or (values[0].startswith("#") and names is None):
            continue
        if names is None:
            names = _header([v.strip() for v in values], op, at)
            continue
        item = _item(dict(zip(names, values, strict=False)), len(values) - len(names), op, at)
        if item.problem in line_of:
            raise DataError(f"{at}: line {line_of[item.problem]} has this problem already; each may stand once")
        line_of[item.problem] = reader.line_num
        items.append(item)
    if not items:
        raise DataError(f"{source}: no problems; expected a header with {ORIGIN} and dimensions, then a line for each")
    return tuple(items)


def load(path: Path, op: str) -> tuple[Item, ...]:
    """Read a problem set; see :func:`loads`.

    Raises:
        DataError: the file cannot be read or is no problem set of `op`; the message names file and line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise DataError(f"{path}: cannot read the problem set: {e}") from e
    return loads(text, op, str(path))


def _header(names: list[str], op: str, at: str) -> list[str]:
    known = (ORIGIN, *OPS[op].column_names())
    required = {f.name for f in dataclasses.fields(OPS[op]) if f.default is dataclasses.MISSING} | {ORIGIN}
    for name in names:
        if name not in known:
            raise DataError(f"{at}: {name!r} is no column of {op} problems; known are {', '.join(known)}")
        if names.count(name) > 1:
            raise DataError(f"{at}: column {name} stands {names.count(name)} times")
    if lacking := [name for name in known if name in required and name not in names]:
        raise DataError(f"{at}: {op} problems need the column {lacking[0]}")
    return names


def _item(values: dict[str, str], surplus: int, op: str, at: str) -> Item:
    if surplus:
        raise DataError(f"{at}: {'more' if surplus > 0 else 'fewer'} values than the header has columns")
    origin = values.pop(ORIGIN).strip()
    if not origin:
        raise DataError(f"{at}: {ORIGIN} is empty; it says where a problem comes from")
    kinds = {f.name: f.type for f in dataclasses.fields(OPS[op])}  # names, as annotations are not evaluated
    sizes: dict[str, int | str] = {}
    for name, value in values.items():
        try:
            sizes[name] = value.strip() if kinds[name] == "str" else int(value)
        except ValueError:
            raise DataError(f"{at}: {name} must be a whole number, got {value!r}") from None
    try:
        return Item(OPS[op].from_dict(sizes), origin)
    except ProblemError as e:
        raise DataError(f"{at}: {e}") from e

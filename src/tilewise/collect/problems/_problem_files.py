"""CSV files of problem sets: one problem per line, with a column for its origin and one for every dimension.

A file has a comment (lines that begin with ``#``), a header with the columns' names, then the problems, which are
measured in the order of the file. Dimensions with a default may be left out.
"""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Sequence
from pathlib import Path

from tilewise.collect._plan import Item
from tilewise.errors import DataError, ProblemError
from tilewise.ops import OPS, Problem

ORIGIN = "origin"


def dump_problem_set(op: str, items: Sequence[Item], about: str) -> str:
    """Return the text of a problem set, without columns whose values are all the default.

    Args:
        op: name of the op, see :data:`tilewise.ops.OPS`.
        items: the problems, in order.
        about: the comment at the top, which describes the set and its origin.
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


def parse_problem_set(text: str, op: str, source: str) -> tuple[Item, ...]:
    """Parse the text of a problem set into its problems, in order.

    Args:
        text: as :func:`dumps` writes it.
        op: op of the problems.
        source: name of the text in errors, e.g. its path.

    Raises:
        DataError: a column is unknown or missing; a line has too many or too few values, a value of the wrong type, an
            impossible problem or one of an earlier line; or there are no problems. The message names `source` and line.
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
            raise DataError(f"{at}: line {line_of[item.problem]} has this problem already; remove one of them")
        line_of[item.problem] = reader.line_num
        items.append(item)
    if not items:
        raise DataError(f"{source}: no problems; expected a header with {ORIGIN} and dimensions, then a line for each")
    return tuple(items)


def load_problem_file(path: Path, op: str) -> tuple[Item, ...]:
    """Read a problem set; see :func:`loads`.

    Raises:
        DataError: the file cannot be read or is not a problem set of `op`; the message names file and line.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        raise DataError(f"{path}: cannot read the problem set: {e}") from e
    return parse_problem_set(text, op, str(path))


def _header(names: list[str], op: str, at: str) -> list[str]:
    known = (ORIGIN, *OPS[op].column_names())
    required = {f.name for f in dataclasses.fields(OPS[op]) if f.default is dataclasses.MISSING} | {ORIGIN}
    for name in names:
        if name not in known:
            raise DataError(f"{at}: {name!r} is not a column of {op} problems; known are {', '.join(known)}")
        if names.count(name) > 1:
            raise DataError(f"{at}: column {name} occurs {names.count(name)} times, it must occur once")
    if lacking := [name for name in known if name in required and name not in names]:
        raise DataError(f"{at}: {op} problems need the column {lacking[0]}")
    return names


def _item(values: dict[str, str], surplus: int, op: str, at: str) -> Item:
    if surplus:
        raise DataError(f"{at}: {'more' if surplus > 0 else 'fewer'} values than the header has columns")
    origin = values.pop(ORIGIN).strip()
    if not origin:
        raise DataError(f"{at}: {ORIGIN} must not be empty; name where the problem comes from")
    kinds = {f.name: f.type for f in dataclasses.fields(OPS[op])}  # as text: annotations are not evaluated
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

"""The output of every verb: prose for people, or one JSON document (``--json``), or nothing (``--quiet``).

Texts come from outside (tags, file names, reasons), so none is ever read as markup.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, TypeAlias

from rich.console import Console
from rich.measure import Measurement
from rich.table import Table

Mode: TypeAlias = Literal["text", "json", "quiet"]
Document: TypeAlias = object  # plain data, dataclasses, paths, numbers of NumPy

_UNLIMITED = 10_000  # columns
_mode: ContextVar[Mode] = ContextVar("tilewise_output", default="text")
_written = False  # whether this command has written a result


@contextmanager
def output_mode(mode: Mode) -> Iterator[None]:
    """Print in this mode for the duration of the block."""
    global _written
    _written = False
    token = _mode.set(mode)
    try:
        yield
    finally:
        _mode.reset(token)


def plain_console(width: int | None = None) -> Console:
    """Return a console that prints brackets and colons as they are, in tables and titles too.

    With ``--json`` and ``--quiet`` it prints nothing.

    Args:
        width: columns of the output; None: those of the terminal.
    """
    return _PlainConsole(width=width, markup=False, emoji=False, quiet=_mode.get() != "text")


class _PlainConsole(Console):
    """A console that prints a table as a list of its rows where the table's words do not fit beside each other."""

    def print(self, *objects: Any, **options: Any) -> None:
        if not any(isinstance(item, Table) for item in objects):
            super().print(*objects, **options)
            return
        for item in objects:
            if isinstance(item, Table) and not self._fits(item):
                super().print("\n".join(_as_list(item)), soft_wrap=True, highlight=False)
            else:
                super().print(item, **options)

    def _fits(self, table: Table) -> bool:
        """Return whether the table can be printed without breaking or cutting a word."""
        return Measurement.get(self, self.options.update(width=_UNLIMITED), table).minimum <= self.width


def _as_list(table: Table) -> Iterator[str]:
    """Yield title, rows and caption of a table: a line for each cell, and an empty one after a row."""
    if table.title:
        yield f"{table.title}"
    for row in zip(*(column.cells for column in table.columns), strict=True):
        for column, cell in zip(table.columns, row, strict=True):
            if str(cell):
                yield f"{column.header}: {cell}".removeprefix(": ").replace("\n", ", ")
        yield ""
    if table.caption:
        yield f"{table.caption}"


def write_out(text: str) -> None:
    """Write text to standard output as it is, unless ``--json`` or ``--quiet`` is given."""
    if _mode.get() == "text":
        sys.stdout.write(text)


def write_result(document: Document, text: str | None = None) -> None:
    """Write the result of a verb as JSON if ``--json`` is given. Verbs call it once.

    Args:
        document: the result; paths and dataclasses in it are converted.
        text: its JSON, if the verb has a layout of its own.
    """
    global _written
    if _mode.get() == "json":
        _written = True
        sys.stdout.write(text or json.dumps(document, indent=1, default=_plain) + "\n")


def result_written() -> bool:
    """Return whether the last command has written a result."""
    return _written


def write_document(document: Document, text: str) -> bool:
    """Write a document of which people read a table and programs read JSON.

    Args:
        document: the result.
        text: its JSON, which goes to a pipe also without ``--json``.

    Returns:
        Whether the caller should print it for people: on a terminal, without ``--json``.
    """
    write_result(document, text)
    if sys.stdout.isatty():
        return _mode.get() == "text"
    write_out(text)
    return False


def _plain(value: object) -> object:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return dataclasses.asdict(value)
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "tolist"):  # NumPy's scalars and arrays
        return value.tolist()
    if isinstance(value, Mapping):
        return dict(value)
    if isinstance(value, Sequence | set | frozenset):
        return [*value]
    raise TypeError(f"{type(value).__name__} cannot be written as JSON")

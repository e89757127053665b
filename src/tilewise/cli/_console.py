"""The console of every verb. Texts come from outside (tags, file names, reasons), so none is ever read as markup."""

from __future__ import annotations

from rich.console import Console


def plain_console(width: int | None = None) -> Console:
    """Return a console that prints brackets and colons as they are, in tables and titles too.

    Args:
        width: columns of the output; None: those of the terminal.
    """
    return Console(width=width, markup=False, emoji=False)

"""Generated blocks of a Markdown page: its prose is written by hand, its tables and plots are filled in."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tilewise.data.describe._description_plots import FIGURES
from tilewise.data.describe._description_tables import TextTable
from tilewise.markdown import fill, table


def fill_page(page: str, path: Path, tables: Sequence[TextTable], plots: Sequence[Path]) -> str:
    """Return a page with every table in the block of its name, and the plots in the blocks of their figures.

    Args:
        page: text of the page, with blocks as for :func:`tilewise.markdown.fill`.
        path: path of the page, from which links to the plots are relative.
        tables: the tables.
        plots: result of :func:`tilewise.data.describe.write_plots`; figures without plots stay as they are.

    Raises:
        UsageError: the page lacks a block.
    """
    blocks = {t.name: _table(t) for t in tables}
    for name, (title, _, _) in FIGURES.items():
        images = [f"![{title}]({os.path.relpath(p, path.parent)})" for p in plots if p.stem.startswith(f"{name}_")]
        if images:
            blocks[f"plot-{name}"] = "\n\n".join(images)
    return fill(page, blocks)


def _table(shown: TextTable) -> str:
    if not shown.rows:
        return "None."
    note = f"\n{shown.note[0].upper()}{shown.note[1:]}\n" if shown.note else ""
    return f"{table(shown.header, shown.rows, words=shown.words)}{note}"

"""A description as blocks of a Markdown page: the page's words are written by hand, its figures are not."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from tilewise.describe.plots import FIGURES
from tilewise.describe.tables import TextTable
from tilewise.markdown import fill, table


def fill_page(page: str, path: Path, tables: Sequence[TextTable], plots: Sequence[Path]) -> str:
    """The text `page` with every table in the block of its name, and the plots in those of their figures.

    Args:
        page: with blocks as :func:`tilewise.markdown.fill` takes them.
        path: of the page, which links to the plots relatively.
        tables: to fill in.
        plots: from :func:`tilewise.describe.plots.plot_all`; without any, the figures stay as they are.

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

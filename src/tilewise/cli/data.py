"""Check measurements and write the table to learn from, or describe what there is.

tilewise data prepare [input=FILE_OR_FOLDER] [output=FILE] [target=NAME]
tilewise data describe [data=FILE_OR_FOLDER] [output=FOLDER] [out=PAGE.md]

prepare keeps the good rows of one target. Rows that break a rule, and labels that cannot be trusted (above the
roofline, contradicting each other, cold starts), go to FILE's sibling .quarantined.parquet with a reason, file and row;
more of them than 1 % block the data.

describe prints what there is of each target: problems, rows by status, reasons, spread, runs, and how well a second run
agrees. output= draws it as plots in a folder, out= fills the tables, and the plots of output=, into a page with blocks
`<!-- begin NAME -->` ... `<!-- end NAME -->`.
"""

from __future__ import annotations

import io
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pandas as pd
import pyarrow as arrow
import pyarrow.parquet as pq
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tilewise.data.prepare import Prepared, prepare
from tilewise.data.schema import read_raw
from tilewise.errors import ConfigError, DataError
from tilewise.files import write_bytes, write_text
from tilewise.ops import Target

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from tilewise.describe.tables import TextTable

MAX_QUARANTINED = 0.01
WIDTH = 180  # of tables that go to a file or another program


def run(cfg: DictConfig) -> None:
    """Do ``cfg.action``.

    Raises:
        ConfigError: there is no such action.
        DataError: the table cannot be used, or too much of it is bad.
    """
    if cfg.action == "prepare":
        _prepare(cfg)
    elif cfg.action == "describe":
        _describe(cfg)
    else:
        raise ConfigError(f"data needs an action, prepare or describe, got {cfg.action!r}")


def _prepare(cfg: DictConfig) -> None:
    target, source = Target.parse(cfg.target), Path(cfg.input or cfg.data)
    output = Path(cfg.output or cfg.out or f"build/prepared/{target.name}.parquet")
    prepared = prepare(read_raw(source, target), target)
    quarantine = output.with_suffix(".quarantined.parquet")
    if len(prepared.quarantined):
        write_bytes(quarantine, _parquet(prepared.quarantined))
    else:
        quarantine.unlink(missing_ok=True)
    console = Console()
    _show_quarantine(prepared, quarantine, console)
    if prepared.quarantined_share > MAX_QUARANTINED:
        raise DataError(
            f"{source}: {len(prepared.quarantined)} of {len(prepared.frame) + len(prepared.quarantined)} rows are bad, "
            f"more than {MAX_QUARANTINED:.0%}; {quarantine} says why. Measure them again, or leave them out"
        )
    write_bytes(output, _parquet(prepared.frame))
    valid = int(prepared.frame["is_valid"].sum())
    console.print(f"{output}: {len(prepared.frame)} rows, {valid} of them valid", soft_wrap=True, highlight=False)


def _show_quarantine(prepared: Prepared, path: Path, console: Console) -> None:
    if not len(prepared.quarantined):
        return
    console.print(f"{len(prepared.quarantined)} rows in quarantine ({path}):", soft_wrap=True, highlight=False)
    kinds = prepared.quarantined["reason"].str.replace(r"\d[\d.e+-]*", "#", regex=True)
    for kind, count in kinds.value_counts().head(10).items():
        console.print(f"  {count} x {kind}", soft_wrap=True, highlight=False)


def _describe(cfg: DictConfig) -> None:
    from tilewise.describe.description import describe_all
    from tilewise.describe.tables import text_tables

    described = tuple(describe_all(Path(cfg.input or cfg.data), cfg.holdout.fraction))
    tables = text_tables(described)
    console = Console(width=None if sys.stdout.isatty() else WIDTH)
    for table in tables:
        _show(table, console)
    if not (cfg.output or cfg.out):
        return
    from tilewise.describe.page import fill_page
    from tilewise.describe.plots import plot_all

    plots = plot_all(described, Path(cfg.output)) if cfg.output else []
    if plots:
        console.print(f"{cfg.output}: {len(plots)} plots", soft_wrap=True, highlight=False)
    if cfg.out:
        page = Path(cfg.out)
        write_text(page, fill_page(_read_page(page), page, tables, plots))
        console.print(f"{page}: filled in", soft_wrap=True, highlight=False)


def _show(table: TextTable, console: Console) -> None:
    if not table.rows:
        return
    shown = Table(title=table.title, title_justify="left", caption=table.note or None, caption_justify="left")
    for i, name in enumerate(table.header):
        shown.add_column(name, justify="left" if i < table.words else "right", overflow="fold")
    for row in table.rows:
        shown.add_row(*map(escape, row))
    console.print(shown)
    console.print()


def _read_page(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as e:
        raise ConfigError(f"out={path}: {e.strerror}; it names a page to fill, such as docs/data.md") from e


def _parquet(frame: pd.DataFrame) -> bytes:
    """The same bytes for the same table."""
    buffer = io.BytesIO()
    table = arrow.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    return buffer.getvalue()

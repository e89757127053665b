"""Check measurements and write the table to learn from, put tables together, or describe what there is.

tilewise data prepare [input=FILE_OR_FOLDER] [output=FILE] [target=NAME]
tilewise data merge input=[FILE_OR_FOLDER,...] output=FILE [target=NAME]
tilewise data describe [data=FILE_OR_FOLDER] [output=FOLDER] [out=PAGE.md]

prepare keeps the good rows of one target. Rows that break a rule, and labels that cannot be trusted (above the
roofline, contradicting each other, cold starts, outliers), go to FILE's sibling .quarantined.parquet with a reason,
file and row; more of them than 1 % block the data.

merge makes one table of several, and writes none while it holds a faulty row that nobody decided on. Decisions are
exclusions beside the tables (NAME.exclusions.yaml: rule, key, reason, decided_by); prepare keeps to them as well, and
both record them in what they write. A blocked merge writes the missing entries to FILE's sibling .faults.yaml.

describe prints what there is of each target: problems, rows by status, reasons, spread, runs, and how well a second run
agrees. output= draws it as plots in a folder, out= fills the tables, and the plots of output=, into a page with blocks
`<!-- begin NAME -->` ... `<!-- end NAME -->`.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tilewise.data.exclusions import METADATA, Exclusion, find_exclusions
from tilewise.data.merge import merge
from tilewise.data.prepare import Prepared, prepare
from tilewise.data.schema import read_raw
from tilewise.data.store import parquet_bytes
from tilewise.errors import ConfigError, DataError
from tilewise.files import create_bytes, write_bytes, write_text
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
    elif cfg.action == "merge":
        _merge(cfg)
    else:
        raise ConfigError(f"data needs an action, prepare, describe or merge, got {cfg.action!r}")


def _prepare(cfg: DictConfig) -> None:
    target, source = Target.parse(cfg.target), Path(cfg.input or cfg.data)
    output = Path(cfg.output or cfg.out or f"build/prepared/{target.name}.parquet")
    prepared = prepare(read_raw(source, target), target, find_exclusions([source]))
    quarantine = output.with_suffix(".quarantined.parquet")
    if len(prepared.quarantined):
        write_bytes(quarantine, parquet_bytes(prepared.quarantined))
    else:
        quarantine.unlink(missing_ok=True)
    console = Console()
    _show_decisions(prepared.applied, console)
    _show_quarantine(prepared, quarantine, console)
    if prepared.quarantined_share > MAX_QUARANTINED:
        raise DataError(
            f"{source}: {prepared.quarantined_share:.2%} of the rows are bad, more than {MAX_QUARANTINED:.0%}; "
            f"{quarantine} says why. Measure them again, or leave them out on purpose (exclusions beside the data)"
        )
    made = [{**decision.to_dict(), "rows": count} for decision, count in prepared.applied if count]
    decisions = {METADATA: json.dumps(made).encode()} if made else None
    write_bytes(output, parquet_bytes(prepared.frame, decisions))
    valid = int(prepared.frame["is_valid"].sum())
    console.print(f"{output}: {len(prepared.frame)} rows, {valid} of them valid", soft_wrap=True, highlight=False)


def _show_quarantine(prepared: Prepared, path: Path, console: Console) -> None:
    if not len(prepared.quarantined):
        return
    console.print(f"{len(prepared.quarantined)} rows in quarantine ({path}):", soft_wrap=True, highlight=False)
    kinds = prepared.quarantined["reason"].str.replace(r"\d[\d.e+-]*", "#", regex=True)
    for kind, count in kinds.value_counts().head(10).items():
        console.print(f"  {count} x {kind}", soft_wrap=True, highlight=False)


def _merge(cfg: DictConfig) -> None:
    target = Target.parse(cfg.target)
    output = cfg.output or cfg.out
    if not cfg.input or not output:
        raise ConfigError("data merge needs input=[FILE,...] and output=FILE.parquet")
    path = Path(output)
    if path.exists():
        raise DataError(f"{path} exists already; it is never overwritten, choose another output")
    inputs = [cfg.input] if isinstance(cfg.input, str) else list(cfg.input)
    merged, console = merge([Path(str(i)) for i in inputs], target), Console()
    _show_decisions(merged.applied, console)
    if merged.repeats:
        console.print(f"{merged.repeats} rows repeat another and were left away", highlight=False)
    undecided = path.with_suffix(".faults.yaml")
    if len(merged.faults):
        for rule, count in merged.faults["rule"].value_counts().items():
            first = merged.faults["reason"][merged.faults["rule"] == rule].iloc[0]
            console.print(f"{count} x {rule}, e.g. {first}", soft_wrap=True, highlight=False, markup=False)
        write_text(undecided, merged.template)
        raise DataError(
            f"{len(merged.faults)} rows cannot be trusted, so nothing is merged; {undecided} lists them as exclusions: "
            f"decide on them and put the file beside the input as NAME.exclusions.yaml, or measure them again"
        )
    undecided.unlink(missing_ok=True)
    try:
        create_bytes(path, parquet_bytes(merged.frame, merged.metadata))
    except FileExistsError as e:
        raise DataError(f"{path} exists already; it is never overwritten, choose another output") from e
    rows = merged.frame
    runs = ", ".join(sorted(rows["run_id"].unique()))
    console.print(
        f"{path}: {len(rows)} rows, {int(rows['is_valid'].sum())} of them valid, of {runs}",
        soft_wrap=True,
        highlight=False,
    )


def _show_decisions(applied: Sequence[tuple[Exclusion, int]], console: Console) -> None:
    """Say which rows were left out on purpose, and which decisions left out none."""
    rows: Counter[str] = Counter()
    for decision, count in applied:
        rows[f"{decision.rule}, {decision.reason} ({decision.decided_by})"] += count
    for what, count in rows.items():
        console.print(f"{count} rows left out on purpose: {what}", soft_wrap=True, highlight=False, markup=False)
    for decision, count in applied:
        if not count:
            console.print(f"{decision.source}: matches no row", soft_wrap=True, highlight=False, markup=False)


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

"""Check measurements and write the training table, merge tables, describe or publish the measurements.

tilewise data prepare [input=FILE_OR_FOLDER] [output=FILE] [target=NAME]
tilewise data merge 'input=[FILE_OR_FOLDER,...]' output=FILE [target=NAME]
tilewise data describe [target=NAME] [data=FILE_OR_FOLDER] [output=FOLDER] [out=PAGE.md]
tilewise data describe stages=all [...]      every target of the tables
tilewise data publish output=FOLDER [stages=all] [target=NAME] [data=FILE_OR_FOLDER]
tilewise data export output=FILE.csv|.json [input=FILE_OR_FOLDER] [target=NAME]

prepare keeps the good rows of one target. Rows that break a rule, and labels that cannot be trusted (above the
roofline, contradicting each other, cold starts, outliers), go to FILE's sibling .quarantined.parquet with a reason,
file and row. If more than 1 % of the rows are bad, no training table is written.

merge makes one table of several. Every faulty row needs a decision first; until then merge writes no table, but lists
the missing decisions in FILE's sibling .faults.yaml. Decisions are exclusions beside the tables (NAME.exclusions.yaml:
rule, key, reason, decided_by). prepare applies them as well, and both record them in their output.

export writes measurements of CK Tile's kernels as its own benchmark file: CSV for convolutions, JSON for matrix
products.

publish writes a data set for others into a new folder: a table per target with a column `split`, SHA256SUMS and a card.
`tilewise score` judges selections by it.

describe prints the measurements of the target: problems, rows by status, reasons, spread, runs, and how well a second
run agrees. output= draws plots in a folder. out= fills a page's blocks `<!-- begin NAME -->` ... `<!-- end NAME -->`
with the tables and the plots of output=.
"""

from __future__ import annotations

import dataclasses
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from tilewise.checks import require_format
from tilewise.cli._console import plain_console, write_result
from tilewise.collect import ProgressLine
from tilewise.data import QUARANTINED, parquet_bytes, read_measurements, to_ck_text
from tilewise.data.quality import (
    Exclusion,
    Prepared,
    merge_measurements,
    prepare_files,
    write_prepared,
)
from tilewise.errors import ConfigError, DataError
from tilewise.files import create_bytes, write_bytes, write_text
from tilewise.ops import Target

if TYPE_CHECKING:
    from omegaconf import DictConfig

    from tilewise.data.describe import TextTable

MAX_QUARANTINED = 0.01
WIDTH = 180  # columns of tables that go to a file or a pipe


def run(cfg: DictConfig) -> None:
    """Run ``cfg.action``.

    Raises:
        ConfigError: the action is missing or unknown.
        DataError: the table cannot be used, or too many of its rows are bad.
    """
    if cfg.action == "prepare":
        _prepare(cfg)
    elif cfg.action == "describe":
        _describe(cfg)
    elif cfg.action == "merge":
        _merge(cfg)
    elif cfg.action == "export":
        _export(cfg)
    elif cfg.action == "publish":
        _publish(cfg)
    else:
        raise ConfigError(f"data needs an action, prepare, describe, merge, export or publish; got {cfg.action!r}")


def _publish(cfg: DictConfig) -> None:
    from tilewise.publish import write_tables

    if not cfg.output:
        raise ConfigError("output: missing; name the folder to write, e.g. output=build/published")
    folder, source = Path(cfg.output), Path(cfg.input or cfg.data)
    targets = [Target.parse(name) for name in cfg.targets]
    published = write_tables(source, targets, float(cfg.holdout.fraction), folder)
    console = plain_console()
    for table in published:
        console.print(f"{folder / table.file}: {table.n_rows} rows", soft_wrap=True, highlight=False)
    write_result({"output": folder, "tables": {t.target.name: t.sha256 for t in published}})


def _export(cfg: DictConfig) -> None:
    if not cfg.output:
        raise ConfigError("output: missing; name the file to write, FILE.csv for convolutions, FILE.json for products")
    target, output = Target.parse(cfg.target), Path(cfg.output)
    frame = read_measurements(Path(cfg.input or cfg.data), target)
    create_bytes(output, to_ck_text(frame, target, output).encode())
    plain_console().print(f"{output}: {len(frame)} rows", soft_wrap=True, highlight=False)
    write_result({"output": output, "rows": len(frame)})


def _prepare(cfg: DictConfig) -> None:
    target, source = Target.parse(cfg.target), Path(cfg.input or cfg.data)
    output = Path(cfg.output or f"build/prepared/{target.name}.parquet")
    require_format(output, ".parquet")
    prepared = prepare_files(source, target, cfg.chunk_rows)
    quarantine = output.with_suffix(QUARANTINED)
    if len(prepared.quarantined):
        write_bytes(quarantine, parquet_bytes(prepared.quarantined))
    else:
        quarantine.unlink(missing_ok=True)
    console = plain_console()
    _show_decisions(prepared.applied, console)
    _show_quarantine(prepared, quarantine, console)
    if prepared.quarantined_share > MAX_QUARANTINED:
        raise DataError(
            f"{source}: {prepared.quarantined_share:.2%} of the rows are bad, more than {MAX_QUARANTINED:.0%}; "
            f"{quarantine} has the reasons. Measure them again, or exclude them (NAME.exclusions.yaml beside the data)"
        )
    valid, good = write_prepared(output, prepared), prepared.screened.n_good
    console.print(f"{output}: {good} rows, {valid} of them valid", soft_wrap=True, highlight=False)
    quarantined = len(prepared.quarantined)
    write_result({"output": output, "rows": good, "valid": valid, "quarantined": quarantined})


def _show_quarantine(prepared: Prepared, path: Path, console: Console) -> None:
    if not len(prepared.quarantined):
        return
    console.print(f"{len(prepared.quarantined)} rows in quarantine ({path}):", soft_wrap=True, highlight=False)
    kinds = prepared.quarantined["reason"].str.replace(r"\d[\d.e+-]*", "#", regex=True)
    for kind, count in kinds.value_counts().head(10).items():
        console.print(f"  {count} x {kind}", soft_wrap=True, highlight=False)


def _merge(cfg: DictConfig) -> None:
    target = Target.parse(cfg.target)
    if not cfg.input or not cfg.output:
        raise ConfigError("data merge needs 'input=[FILE,...]' and output=FILE.parquet")
    path = Path(cfg.output)
    require_format(path, ".parquet")
    if path.exists():
        raise DataError(f"{path} exists already; it is never overwritten, choose another output")
    inputs = [cfg.input] if isinstance(cfg.input, str) else list(cfg.input)
    merged, console = merge_measurements([Path(str(i)) for i in inputs], target), plain_console()
    _show_decisions(merged.applied, console)
    if merged.repeats:
        console.print(f"{merged.repeats} rows repeat another and were left out", highlight=False)
    if merged.superseded:
        console.print(f"{merged.superseded} rows of earlier programs were left out: measured again", highlight=False)
    undecided = path.with_suffix(".faults.yaml")
    if len(merged.faults):
        for rule, count in merged.faults["rule"].value_counts().items():
            first = merged.faults["reason"][merged.faults["rule"] == rule].iloc[0]
            console.print(f"{count} x {rule}, e.g. {first}", soft_wrap=True, highlight=False)
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
    rows, valid = len(merged.frame), int(merged.frame["is_valid"].sum())
    runs = sorted(merged.frame["run_id"].unique())
    line = f"{path}: {rows} rows, {valid} of them valid, of {', '.join(runs)}"
    console.print(line, soft_wrap=True, highlight=False)
    write_result({"output": path, "rows": rows, "valid": valid, "runs": runs, "repeats": merged.repeats})


def _show_decisions(applied: Sequence[tuple[Exclusion, int]], console: Console) -> None:
    """Print how many rows each reason excluded, and the decisions that match no row."""
    rows: Counter[str] = Counter()
    for decision, count in applied:
        rows[f"{decision.rule}, {decision.reason} ({decision.decided_by})"] += count
    for reason, count in rows.items():
        console.print(f"{count} rows left out on purpose: {reason}", soft_wrap=True, highlight=False)
    for decision, count in applied:
        if not count:
            console.print(f"{decision.source}: matches no row", soft_wrap=True, highlight=False)


def _describe(cfg: DictConfig) -> None:
    from tilewise.data.describe import describe_tables, text_tables

    only = Target.parse(cfg.target) if list(cfg.targets) == [cfg.target] else None  # stages=all: every target
    progress = ProgressLine() if sys.stderr.isatty() else None
    described = tuple(describe_tables(Path(cfg.input or cfg.data), cfg.holdout.fraction, only, progress))
    tables = text_tables(described)
    write_result([dataclasses.asdict(table) for table in tables])
    console = plain_console(width=None if sys.stdout.isatty() else WIDTH)
    for table in tables:
        _show(table, console)
    if not (cfg.output or cfg.out):
        return
    from tilewise.data.describe import fill_page, write_plots

    plots = write_plots(described, Path(cfg.output)) if cfg.output else []
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
        shown.add_row(*row)
    console.print(shown)
    console.print()


def _read_page(path: Path) -> str:
    try:
        return path.read_text()
    except OSError as e:
        raise ConfigError(f"out={path}: {e.strerror}; it names a page to fill, such as docs/data.md") from e
    except UnicodeDecodeError as e:
        raise ConfigError(f"out={path}: not a text; it names a page to fill, such as docs/data.md") from e

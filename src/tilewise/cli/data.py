"""Check measurements and write the table to learn from, or describe what there is.

tilewise data prepare [input=FILE_OR_FOLDER] [output=FILE] [target=NAME]
tilewise data describe [data=FILE_OR_FOLDER]

prepare keeps the good rows of one target. Rows that break a rule, and labels that cannot be trusted (above the
roofline, contradicting each other, cold starts), go to FILE's sibling .quarantined.parquet with a reason, file and row;
more of them than 1 % block the data.
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
from rich.table import Table

from tilewise.data.columns import TARGET
from tilewise.data.prepare import Prepared, prepare
from tilewise.data.rows import problem_index
from tilewise.data.schema import parquet_files, read_measurements, read_raw
from tilewise.errors import ConfigError, DataError
from tilewise.files import write_bytes
from tilewise.ops import Target

if TYPE_CHECKING:
    from omegaconf import DictConfig

MAX_QUARANTINED = 0.01
PAUSE_S = 60.0


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
    table = Table(title=str(cfg.input or cfg.data), title_justify="left")
    for column in ("file", "target", "run", "measured at"):
        table.add_column(column)
    for column in ("problems", "kernels", "rows", "valid", "valid a second", "spread"):
        table.add_column(column, justify="right")
    for file in parquet_files(Path(cfg.input or cfg.data)):
        for key, rows in read_measurements(file).groupby([*(c.name for c in TARGET), "run_id"], sort=True):
            at = rows["measured_at"].dropna()
            counts = (_problems(rows), rows["kernel_name"].nunique(), len(rows), int(rows["is_valid"].sum()))
            words = (file.name, "_".join(map(str, key[:4])), str(key[4]), str(at.min()) if len(at) else "-")
            table.add_row(*words, *map(str, counts), rate(rows), f"{spread(rows):.2%}")
    console = Console(width=None if sys.stdout.isatty() else 160)
    console.print(table)
    console.print("spread: median over the valid rows of (p80 - p20) / p50 of a kernel's samples", highlight=False)


def spread(rows: pd.DataFrame) -> float:
    """How far the samples of a kernel lie apart: the median of ``(p80 - p20) / p50`` over the valid rows."""
    valid = rows[rows["is_valid"]]
    return float(((valid["latency_p80_ms"] - valid["latency_p20_ms"]) / valid["latency_ms"]).median())


def rate(rows: pd.DataFrame) -> str:
    """Valid measurements a second, without the pauses of a run that was stopped and resumed."""
    times = pd.to_datetime(rows["measured_at"].dropna(), utc=True).sort_values()
    gaps = times.diff().dt.total_seconds()
    busy = float(gaps[gaps < PAUSE_S].sum())
    return f"{rows['is_valid'].sum() / busy:.0f}" if busy else "-"


def _problems(rows: pd.DataFrame) -> int:
    return int(problem_index(rows, str(rows["op"].iloc[0])).max()) + 1


def _parquet(frame: pd.DataFrame) -> bytes:
    """The same bytes for the same table."""
    buffer = io.BytesIO()
    table = arrow.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata(None)
    pq.write_table(table, buffer, compression="zstd", write_page_checksum=True)
    return buffer.getvalue()

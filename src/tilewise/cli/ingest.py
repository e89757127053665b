"""Import measurements that others made: CK Tile's benchmark CSV, benchmark JSON, streaming log, or a parquet table.

tilewise ingest input=FILE output=FILE.parquet target=NAME        or op= variant= dtype= arch=

The format is recognised from the content; gzip is read through. The arch stands in none of these files, so say it. What
is malformed is named by its line and kept in FILE.quarantined.jsonl; everything else comes through, runs that failed as
rows that say so. Labels are checked later, by `tilewise data prepare` and `tilewise data merge`.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tilewise.collect.progress import ProgressLine
from tilewise.data.importers import Report, ingest
from tilewise.errors import ConfigError
from tilewise.ops import Target

if TYPE_CHECKING:
    from omegaconf import DictConfig

SHOWN_LOSSES = 3  # of a kind, with their lines


def run(cfg: DictConfig) -> None:
    """Import ``cfg.input`` into ``cfg.output``.

    Raises:
        ConfigError: either is missing.
        DataError: the input cannot be imported, or the output exists.
    """
    output = cfg.output or cfg.out
    if not cfg.input or not output:
        raise ConfigError("ingest needs input=FILE and output=FILE.parquet")
    line = ProgressLine()
    target = Target.parse(cfg.target)
    report = ingest(Path(cfg.input), target, Path(output), lambda done, of: line("importing", done, of))
    _show(report, target, Console())


def _show(report: Report, target: Target, console: Console) -> None:
    def say(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False, markup=False)

    say(f"{report.path}: {report.rows} rows of {target.name} from a {report.format}, {report.valid} of them valid")
    if not report.lost:
        return
    say(f"{report.lost} of {report.parts} parts did not come through ({report.quarantine}):")
    for kind, count in report.kinds.most_common(10):
        say(f"  {count} x {kind}")
        for loss in report.first[kind][:SHOWN_LOSSES]:
            say(f"    line {loss.line}: {loss.reason}")

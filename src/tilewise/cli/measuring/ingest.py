"""Import measurements of other tools: CK Tile's benchmark CSV, benchmark JSON, streaming log, or a parquet table.

tilewise ingest input=FILE output=FILE.parquet target=NAME        or op= variant= dtype= arch=
tilewise ingest input=gfx942130.HIP.fdb.txt.bz2 output=FILE.parquet       MIOpen's find database: all its targets

The format is recognised by the content, also inside gzip and bzip2. No file of CK Tile names the arch, so give it; a
find database has it in its name, and op, variant and dtype in its lines. Malformed parts are reported by line and kept
in FILE.quarantined.jsonl; all others are imported, failed runs with their status. hardware=FILE.json has the properties
of the GPU that measured, for the columns of the device.
`tilewise data prepare` and `tilewise data merge` check the labels later.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tilewise.checks import require_format
from tilewise.cli._console import plain_console, write_result
from tilewise.collect import ProgressLine
from tilewise.data.importers import ImportReport, ingest_file
from tilewise.errors import ConfigError
from tilewise.ops import Target

if TYPE_CHECKING:
    from omegaconf import DictConfig

SHOWN_LOSSES = 3  # per kind


def run(cfg: DictConfig) -> None:
    """Import ``cfg.input`` into ``cfg.output``.

    Raises:
        ConfigError: input or output is missing.
        DataError: the input cannot be imported, or the output exists.
    """
    if not cfg.input or not cfg.output:
        raise ConfigError("ingest needs input=FILE and output=FILE.parquet")
    require_format(cfg.output, ".parquet")
    hardware = Path(cfg.hardware) if cfg.hardware else None
    line = ProgressLine()
    target = Target.parse(cfg.target)
    report = ingest_file(
        Path(cfg.input), target, Path(cfg.output), lambda done, of: line("importing", done, of), hardware
    )
    _show(report, plain_console())
    names = ("path", "format", "contents", "rows", "valid", "parts", "lost", "quarantine", "kinds")
    write_result({name: getattr(report, name) for name in names})


def _show(report: ImportReport, console: Console) -> None:
    def say(text: str) -> None:
        console.print(text, soft_wrap=True, highlight=False)

    say(f"{report.path}: {report.rows} {report.contents} from a {report.format}, {report.valid} of them valid")
    if not report.lost:
        return
    say(f"{report.lost} of {report.parts} parts did not come through ({report.quarantine}):")
    for kind, count in report.kinds.most_common(10):
        say(f"  {count} x {kind}")
        for loss in report.first[kind][:SHOWN_LOSSES]:
            say(f"    line {loss.line}: {loss.reason}")

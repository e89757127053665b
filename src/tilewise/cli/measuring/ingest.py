"""Import measurements of other tools: CK Tile's benchmark CSV, benchmark JSON, streaming log, or a parquet table.

tilewise ingest input=FILE output=FILE.parquet target=NAME        or op= variant= dtype= arch=
tilewise ingest input=gfx942130.HIP.fdb.txt.bz2 output=FILE.parquet       MIOpen's find database: all its targets

The format is recognised by the content, also inside gzip and bzip2. No file of CK Tile names the arch, so give it; a
find database has it in its name, and op, variant and dtype in its lines. Malformed parts are reported by line and kept
in FILE.quarantined.jsonl; all others are imported, failed runs with their status. hardware=FILE.json has the properties
of the GPU that measured, for the columns of the device.
`tilewise data prepare` and `tilewise data merge` check the labels later.

tilewise ingest input=FILE op=NAME 'problem=[M,N,K]' 'config=[BLOCK_M,num_warps]' latency=COLUMN unit=us 'flops=2*M*N*K'
imports any table (CSV, JSON, parquet, a folder of triton.autotune's caches) of an op of your own. A new op's definition
is written to conf/op/NAME.yaml; columns that are not named are found by their names and kinds.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from tilewise.checks import require_format
from tilewise.cli._console import plain_console, write_result
from tilewise.cli.project.own_ops import keep_definition, stated_columns
from tilewise.collect import ProgressLine
from tilewise.data.importers import ImportReport, ingest_file
from tilewise.data.importers.own_op import ingest_own_op
from tilewise.errors import ConfigError
from tilewise.ops import OpDefinition, Target, definition_of

if TYPE_CHECKING:
    from omegaconf import DictConfig

SHOWN_LOSSES = 3  # per kind


def run(cfg: DictConfig) -> None:
    """Import ``cfg.input`` into ``cfg.output``.

    Raises:
        ConfigError: input or output is missing.
        DataError: the input cannot be imported, or the output exists.
    """
    target = Target.parse(cfg.target)
    definition = definition_of(target.op)
    report = _ingest_built_in(cfg, target) if definition is None else _ingest_own_op(cfg, target, definition)
    _show(report, plain_console())
    names = ("path", "format", "contents", "rows", "valid", "parts", "lost", "quarantine", "kinds")
    write_result({name: getattr(report, name) for name in names})


def _ingest_built_in(cfg: DictConfig, target: Target) -> ImportReport:
    if named := [key for key in cfg.ingest if cfg.ingest[key] is not None]:
        raise ConfigError(f"{named[0]}= is for tables of an op of your own, named by op=NAME; {target.op} is built in")
    if not cfg.input or not cfg.output:
        raise ConfigError("ingest needs input=FILE and output=FILE.parquet")
    require_format(cfg.output, ".parquet")
    hardware = Path(cfg.hardware) if cfg.hardware else None
    line = ProgressLine()
    return ingest_file(
        Path(cfg.input), target, Path(cfg.output), lambda done, of: line("importing", done, of), hardware
    )


def _ingest_own_op(cfg: DictConfig, target: Target, definition: OpDefinition) -> ImportReport:
    """Import a table of an op of the user's own, and keep its definition if it is new."""
    if not cfg.input:
        raise ConfigError("ingest needs input=FILE")
    if cfg.hardware:
        raise ConfigError(f"hardware= is for files of CK Tile; leave it out for {target.op}")
    source = Path(cfg.input)
    output = Path(cfg.output or Path(cfg.data) / target.name / f"{source.name.split('.')[0]}.parquet")
    require_format(output, ".parquet")
    columns = stated_columns(*(cfg.ingest[key] for key in ("problem", "config", "latency", "unit")))
    for part, names in (("problem", definition.problem_names), ("config", definition.config_names)):
        stated = getattr(columns, part)
        if stated and stated != names:
            raise ConfigError(f"{part}: {target.op} has {', '.join(names)}, got {', '.join(stated)}; leave out {part}=")
    report = ingest_own_op(source, target, output, columns)
    written = keep_definition(definition)
    if written is not None:
        problem, config = ", ".join(definition.problem_names), ", ".join(definition.config_names)
        plain_console().print(f"{written}: a problem is {problem}; a configuration is {config}", soft_wrap=True)
    return report


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

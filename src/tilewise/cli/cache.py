"""What dispatchers measured on the spot, and which problems they were asked for.

tilewise cache list [input=CACHE] [output=FILE]           what was measured where; JSON in a pipe or a file
tilewise cache merge input=CACHE [output=CACHE]           take over what another machine measured
tilewise cache prune [input=CACHE]                        remove damaged entries, and those of older kernel sources
tilewise cache problems input=RECORD.jsonl output=FILE.csv [target=NAME]
                                                          what TILEWISE_RECORD listed, as a problem set
tilewise cache export output=FILE.parquet collect.run_id=NAME [input=CACHE] [target=NAME]
                                                          what was measured and `data` does not hold yet, to learn from

CACHE is a folder as in TILEWISE_CACHE, which it is by default.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table

from tilewise.collect.plan import Item
from tilewise.collect.problems.files import dumps
from tilewise.dispatch import housekeeping
from tilewise.dispatch.folder import cache_folder
from tilewise.dispatch.measured import FOLDER
from tilewise.dispatch.record import calls_of
from tilewise.errors import ConfigError
from tilewise.files import write_text
from tilewise.ops import Target

if TYPE_CHECKING:
    from omegaconf import DictConfig


def run(cfg: DictConfig) -> None:
    """Do ``cfg.action``.

    Raises:
        ConfigError: a setting is missing.
        DataError: a folder or file cannot be used.
    """
    actions = {"list": _list, "merge": _merge, "prune": _prune, "problems": _problems, "export": _export}
    if cfg.action not in actions:
        raise ConfigError(f"cache: say what to do: {', '.join(actions)}")
    actions[cfg.action](cfg)


def _list(cfg: DictConfig) -> None:
    found = housekeeping.contexts(housekeeping.measured_folder(cfg.input or cache_folder()))
    rows: list[dict[str, Any]] = [
        {
            "target": context.target,
            **dataclasses.asdict(context.machine),
            "pool": context.pool,
            "problems": len(entries),
            "kernels": max(len(e.tried) for e in entries),
            "last": max(e.measured_at for e in entries),
        }
        for context, entries in found.items()
    ]
    text = json.dumps(rows, indent=1) + "\n"
    if cfg.output:
        write_text(cfg.output, text)
    elif sys.stdout.isatty():
        table = Table()
        columns = ("target", "device", "driver", "torch", "triton", "problems", "kernels", "last")
        for column in columns:
            table.add_column(column)
        for row in rows:
            table.add_row(*(str(row[c]) for c in columns))
        Console().print(table)
    else:
        sys.stdout.write(text)


def _merge(cfg: DictConfig) -> None:
    source = housekeeping.measured_folder(_required(cfg, "input", "the other machine's cache"))
    root = Path(cfg.output or cache_folder()) / FOLDER
    done = housekeeping.merge(source, root)
    print(
        f"{root}: {done.added} added, {done.replaced} replaced, {done.kept} as they were; "
        f"{done.damaged} damaged files left out"
    )


def _prune(cfg: DictConfig) -> None:
    root = housekeeping.measured_folder(cfg.input or cache_folder())
    print(f"{root}: {housekeeping.prune(root)} entries removed")


def _problems(cfg: DictConfig) -> None:
    source = _required(cfg, "input", "the file that TILEWISE_RECORD names")
    output = _required(cfg, "output", "the problem set to write")
    target = Target.parse(cfg.target)
    counts = calls_of(source, target)
    items = [Item(problem, f"asked {count} times") for problem, count in counts.items()]
    write_text(output, dumps(target.op, items, f"Problems asked of {target.name}, the most asked for first."))
    print(f"{output}: {len(items)} problems of {target.name}, asked for {sum(counts.values())} times")


def _export(cfg: DictConfig) -> None:
    from tilewise.collect.table import write_parquet  # pyarrow, as nothing else here needs
    from tilewise.dispatch.exporting import export, measured_before

    output = Path(_required(cfg, "output", "the table to write, e.g. data/TARGET.NAME.parquet"))
    cache, target = Path(cfg.input or cache_folder()), Target.parse(cfg.target)
    copies = sorted(cache.glob(f"models/*/{target.name}/*"))
    exported = export(
        housekeeping.contexts(housekeeping.measured_folder(cache)),
        target,
        cfg.collect.run_id,
        models=[Path(cfg.model_dir), *copies],
        known=measured_before(Path(cfg.data), target) if Path(cfg.data).exists() else frozenset(),
    )
    write_parquet(exported.rows, output)
    print(
        f"{output}: {exported.rows.num_rows} rows of {exported.problems} problems; left out are {exported.known} that "
        f"{cfg.data} holds already, and {exported.stale} of other kernel sources or pools"
    )


def _required(cfg: DictConfig, key: str, what: str) -> str:
    if not cfg[key]:
        raise ConfigError(f"{key}: missing; name {what}")
    return str(cfg[key])

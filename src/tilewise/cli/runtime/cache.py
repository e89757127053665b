"""Manage the measurements and requests of dispatchers on this machine.

tilewise cache list [input=CACHE] [output=FILE]           list measurements by machine; JSON in a pipe or a file
tilewise cache merge input=CACHE [output=CACHE]           add the measurements of another machine
tilewise cache prune [input=CACHE]                        remove damaged entries, and those of older kernel sources
tilewise cache problems input=RECORD.jsonl output=FILE.csv [target=NAME]
                                                          write the problems of TILEWISE_RECORD as a problem set
tilewise cache export output=FILE.parquet collect.run_id=NAME [input=CACHE] [target=NAME]
                                                          write measurements that `data` does not hold, for training
tilewise cache export collect.kernel=MODULE:KERNEL dtype=DTYPE output=FILE.parquet [input=CACHE]
                                                          write the measurements of your own kernel's calls

CACHE is a folder as in TILEWISE_CACHE, which is the default.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

from rich.table import Table

from tilewise.cli._console import plain_console, write_document, write_out, write_result
from tilewise.collect import Item
from tilewise.collect.problems import dump_problem_set
from tilewise.dispatch.logs import count_requests
from tilewise.dispatch.measuring import (
    entries_by_context,
    find_measured_folder,
    merge_caches,
    prune_cache,
)
from tilewise.dispatch.sources import MEASURED_FOLDER, cache_folder
from tilewise.errors import ConfigError
from tilewise.files import write_text
from tilewise.ops import Target

if TYPE_CHECKING:
    from omegaconf import DictConfig


def run(cfg: DictConfig) -> None:
    """Run ``cfg.action``.

    Raises:
        ConfigError: the action is unknown, or a setting is missing.
        DataError: a folder or file cannot be used.
    """
    actions = {"list": _list, "merge": _merge, "prune": _prune, "problems": _problems, "export": _export}
    if cfg.action not in actions:
        raise ConfigError(f"cache needs an action, one of {', '.join(actions)}; got {cfg.action!r}")
    actions[cfg.action](cfg)


def _list(cfg: DictConfig) -> None:
    found = entries_by_context(_measured(cfg))
    rows: list[dict[str, object]] = [
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
        write_result(rows, text)
    elif write_document(rows, text):
        table = Table()
        columns = ("target", "device", "driver", "torch", "triton", "problems", "kernels", "last")
        for column in columns:
            table.add_column(column)
        for row in rows:
            table.add_row(*(str(row[c]) for c in columns))
        plain_console().print(table if rows else "no measurements")


def _merge(cfg: DictConfig) -> None:
    source = find_measured_folder(_required(cfg, "input", "the other machine's cache"))
    root = Path(cfg.output or cache_folder()) / MEASURED_FOLDER
    done = merge_caches(source, root)
    write_out(
        f"{root}: {done.added} added, {done.replaced} replaced, {done.unchanged} unchanged; "
        f"{done.invalid} damaged files left out\n"
    )
    write_result({"output": root, **dataclasses.asdict(done)})


def _prune(cfg: DictConfig) -> None:
    root = _measured(cfg)
    removed = prune_cache(root)
    write_out(f"{root}: {removed} entries removed\n")
    write_result({"cache": root, "removed": removed})


def _problems(cfg: DictConfig) -> None:
    source = _required(cfg, "input", "the file that TILEWISE_RECORD names")
    output = _required(cfg, "output", "the problem set to write")
    target = Target.parse(cfg.target)
    counts = count_requests(source, target)
    items = [Item(problem, f"asked {count} times") for problem, count in counts.items()]
    write_text(
        output, dump_problem_set(target.op, items, f"Problems asked of {target.name}, the most asked for first.")
    )
    requests = sum(counts.values())
    write_out(f"{output}: {len(items)} problems of {target.name}, requested {requests} times\n")
    write_result({"output": output, "problems": len(items), "requests": requests})


def _export(cfg: DictConfig) -> None:
    from tilewise.collect import write_measurement_table  # imports pyarrow, which the other actions do not need
    from tilewise.dispatch.measuring import export_measurements, read_exported

    output = Path(_required(cfg, "output", "the table to write, e.g. data/TARGET/NAME.parquet"))
    if cfg.collect.kernel:
        _export_calls(cfg, output)
        return
    cache, target = Path(cfg.input or cache_folder()), Target.parse(cfg.target)
    copies = sorted(cache.glob(f"models/*/{target.name}/*"))
    exported = export_measurements(
        entries_by_context(_measured(cfg)),
        target,
        cfg.collect.run_id,
        models=[Path(cfg.model_dir), *copies],
        known=read_exported(Path(cfg.data), target) if Path(cfg.data).exists() else frozenset(),
    )
    write_measurement_table(exported.rows, output)
    write_out(
        f"{output}: {exported.rows.num_rows} rows of {exported.problems} problems; left out are {exported.known} that "
        f"{cfg.data} holds already, and {exported.stale} of other kernel sources or pools\n"
    )
    left_out = {"known": exported.known, "stale": exported.stale}
    write_result({"output": output, "rows": exported.rows.num_rows, "problems": exported.problems, **left_out})


def _export_calls(cfg: DictConfig, output: Path) -> None:
    """Write the measurements of a tuned kernel's calls."""
    from tilewise.autotuning.op import find_kernel, record_table
    from tilewise.autotuning.records import TUNED_FOLDER, read_records
    from tilewise.collect import write_measurement_table

    kernel, root = find_kernel(str(cfg.collect.kernel)), Path(cfg.input or cache_folder()) / TUNED_FOLDER
    rows = record_table(kernel.op, read_records(root, kernel.name), Target.parse(cfg.target), cfg.collect.run_id)
    write_measurement_table(rows, output)
    write_out(f"{output}: {rows.num_rows} rows of calls of {kernel.name}\n")
    write_result({"output": output, "rows": rows.num_rows})


def _measured(cfg: DictConfig) -> Path:
    """Return the folder of measurements of input=, or of this user's cache, which may be empty or missing.

    Raises:
        DataError: input= names a folder without measurements.
    """
    return find_measured_folder(cfg.input) if cfg.input else cache_folder() / MEASURED_FOLDER


def _required(cfg: DictConfig, key: str, meaning: str) -> str:
    if not cfg[key]:
        raise ConfigError(f"{key}: missing; name {meaning}")
    return str(cfg[key])

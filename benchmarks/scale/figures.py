"""The tables of docs/growth.md that ``python -m benchmarks.report`` fills from results.

Part of :mod:`benchmarks.report` and of the scripts of this folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.results import load
from tilewise.markdown import table

STAGES = ("prepare", "bins")  # of benchmarks.scale.prepare_rows


def blocks(results: Path) -> dict[str, str]:
    """Return the content of the page's blocks, from the result files of a folder."""
    found = dict[str, str]()
    for name, show in (("prepare", prepared), ("train_hosts", hosts), ("tuning", tuned)):
        path = results / f"scale_{name}.json"
        found[f"scale-{name.replace('_', '-')}"] = show(load(path)) if path.exists() else "Not measured yet."
    return found


def prepared(result: Mapping[str, Any]) -> str:
    """Return the table of :mod:`benchmarks.scale.prepare_rows`."""
    figures = {"wall_s": "s", "cpu_s": "CPU s", "peak_gib": "peak GiB"}
    header = ["rows", *(f"{stage}: {unit}" for stage in STAGES for unit in figures.values()), "rows/s"]
    cells = [
        [f"{p['rows']:,}", *(f"{p[s][n]}" for s in STAGES for n in figures), f"{p['rows_per_s']:,}"]
        for p in result["points"]
    ]
    about = f"Chunks of {result['chunk_rows']:,} rows; {result['cores']} cores, load before: {result['load']}."
    return f"{table(header, cells)}\n{about}"


def hosts(result: Mapping[str, Any]) -> str:
    """Return the table of :mod:`benchmarks.scale.train_hosts`."""
    first = result["points"][0]
    cells = [
        [
            str(p["hosts"]),
            str(p["threads"]),
            f"{p['seconds']}",
            f"{first['seconds'] / p['seconds']:.2f}",
            f"{p['cpu_s']}",
            "" if p["peak_gib"] is None else f"{p['peak_gib']}",
            f"{p['efficiency']:.2%}",
        ]
        for p in result["points"]
    ]
    header = ["hosts", "threads each", "seconds", "times faster", "CPU s", "peak GiB of a worker", "mean efficiency"]
    about = f"{result['rows']:,} rows, {result['trees']} trees, {result['cores']} cores, load before: {result['load']}."
    return f"{table(header, cells)}\n{about}"


def tuned(result: Mapping[str, Any]) -> str:
    """Return the table of :mod:`benchmarks.scale.tuning_workers`."""
    names = ("workers", "seed", "killed", "seconds", "complete", "failed", "repeated")
    cells = [[*(f"{p[n]}" for n in names), *(f"{p[n]:.2%}" for n in ("initial", "best"))] for p in result["searches"]]
    about = (
        f"`{result['target']}`, {result['problems']} problems, {result['trials']} trials; {result['cores']} cores, "
        f"load before: {result['load']}."
    )
    return f"{table([*names, 'initial', 'best'], cells)}\n{about}"

"""Measure plans with the kernels of two versions of the sources, on one GPU in one run.

    python -m benchmarks.measuring.two_versions plan LAYERS.json OUTPUT_FOLDER [--count 30]
    python3 -m benchmarks.measuring.two_versions run OLD_SOURCES PLAN.json... --json FILE

`plan` takes convolutions from a result of :mod:`benchmarks.networks.layers`, those with groups whose channels 8 does
not divide but for depthwise ones, and writes a plan of the whole pool per target. `run` (GPU) measures each plan by
``python -m tilewise.collect``, with OLD_SOURCES (a folder ``src`` of another commit) and with these, and keeps the time
of the fastest kernel of each problem by either, beside how much faster the kernels became.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from math import gcd
from pathlib import Path
from statistics import geometric_mean
from typing import Any

import pandas as pd

from benchmarks.results import load, machine, save, spread_evenly
from tilewise.arch import load_arch
from tilewise.collect import Item, Plan, Timing, load_plan
from tilewise.kernels import load_pool
from tilewise.markdown import table
from tilewise.ops import OPS, GroupedConvProblem, Target

RUN_ID = "versions"
WIDEST = 8  # elements of 16 bits in the widest load
SOURCES = Path(__file__).parents[2] / "src"
HEADER = (
    "target",
    "channels of a group divide by (inputs, outputs)",
    "problems",
    "all kernels, median",
    "the fastest kernel",
)


def divisors(p: GroupedConvProblem) -> tuple[int, int]:
    """Return the divisors of a group's input and output channels, up to the elements of the widest load."""
    return gcd(p.C // p.G, WIDEST), gcd(p.K // p.G, WIDEST)


def half_aligned(layers: Mapping[str, Any], count: int) -> dict[str, list[GroupedConvProblem]]:
    """Return `count` problems of each convolution target whose channels 8 does not divide, spread over their sizes."""
    found: dict[str, list[GroupedConvProblem]] = {}
    for entry in layers["entries"]:
        problem = OPS[Target.parse(entry["target"]).op].from_dict(entry["problem"])
        if isinstance(problem, GroupedConvProblem) and _is_half_aligned(problem):
            found.setdefault(entry["target"], []).append(problem)
    for target, problems in found.items():
        problems.sort(key=lambda p: (min(divisors(p)), p.N, p.Hi, p.C))
        found[target] = [problems[i] for i in spread_evenly(len(problems), count)]
    return found


def _is_half_aligned(p: GroupedConvProblem) -> bool:
    return min(divisors(p)) < WIDEST and max(p.C, p.K) > p.G


def write_plans(problems: Mapping[str, Sequence[GroupedConvProblem]], folder: Path) -> None:
    """Write a plan of the whole pool on the problems of each target."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, some in problems.items():
        target = Target.parse(name)
        pool = load_pool(target)
        items = tuple(Item(problem, RUN_ID, tuple(range(len(pool)))) for problem in some)
        plan = Plan(target, load_arch(target.arch), pool, items, Timing(), RUN_ID)
        (folder / f"{name}.json").write_text(plan.dumps())


def measured(plan: Path, sources: Path) -> pd.DataFrame:
    """Return the table of a plan that a version of the sources measures."""
    with tempfile.TemporaryDirectory() as scratch:
        output = Path(scratch, "table.parquet")
        path = os.pathsep.join([str(sources), *filter(None, [os.environ.get("PYTHONPATH")])])
        command = [sys.executable, "-m", "tilewise.collect", str(plan), str(output)]
        subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, check=True)
        return pd.read_parquet(output)


def compared(target: str, old: pd.DataFrame, new: pd.DataFrame) -> list[dict[str, Any]]:
    """Return an entry for each problem: median, least and most of the kernels' old / new times, and the fastest's."""
    dimensions = list(OPS[Target.parse(target).op].column_names())
    both = old[old["is_valid"]].merge(new[new["is_valid"]], on=[*dimensions, "kernel_name"], suffixes=("_old", "_new"))
    entries = []
    for values, rows in both.groupby(dimensions, sort=False):
        ratio = rows["latency_ms_old"] / rows["latency_ms_new"]
        entries.append(
            {
                "target": target,
                "problem": dict(zip(dimensions, (v if isinstance(v, str) else int(v) for v in values), strict=True)),
                "kernels": len(rows),
                "median": float(ratio.median()),
                "least": float(ratio.min()),
                "most": float(ratio.max()),
                "old_ms": float(rows["latency_ms_old"].min()),
                "new_ms": float(rows["latency_ms_new"].min()),
            }
        )
    return entries


def text(result: Mapping[str, Any]) -> str:
    """Return a table of old / new time by target and by the divisors of the channels."""
    by_class: dict[tuple[str, tuple[int, int]], list[Mapping[str, Any]]] = {}
    for entry in result["entries"]:
        key = (entry["target"], divisors(GroupedConvProblem.from_dict(entry["problem"])))
        by_class.setdefault(key, []).append(entry)
    rows = []
    for (target, (inputs, outputs)), entries in sorted(by_class.items()):
        fastest = geometric_mean(e["old_ms"] / e["new_ms"] for e in entries)
        every = geometric_mean(e["median"] for e in entries)
        rows.append([f"`{target}`", f"{inputs}, {outputs}", str(len(entries)), f"{every:.2f}", f"{fastest:.2f}"])
    return table(HEADER, rows)


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True, dest="verb")
    plan, run = verbs.add_parser("plan"), verbs.add_parser("run")
    plan.add_argument("layers", type=Path)
    plan.add_argument("output", type=Path)
    plan.add_argument("--count", type=int, default=30, help="problems of each target")
    run.add_argument("old", type=Path)
    run.add_argument("plans", type=Path, nargs="+")
    run.add_argument("--json", type=Path, required=True)
    args = parser.parse_args(argv)
    if args.verb == "plan":
        write_plans(half_aligned(load(args.layers), args.count), args.output)
        return 0
    result: dict[str, Any] = {"benchmark": "two_versions", "machine": machine(), "entries": []}
    for file in args.plans:
        tables = [measured(file, sources) for sources in (args.old, SOURCES)]
        result["entries"] += compared(load_plan(file).target.name, *tables)
        save(args.json, result)
    print(text(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())

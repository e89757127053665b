"""Compare the kernels of some pipelines with a plan's other kernels and with the vendor's call, in one run.

``python -m benchmarks.vendor.pipelines run PLAN.json... --output FILE.json [--budget-s 60]``
``python -m benchmarks.vendor.pipelines show FILE.json --pipelines merged,mergedbox,relay``

`run` (needs numpy, torch and triton) measures each plan with the engine of ``tilewise collect``: every result is
checked, all candidates of a problem are timed in rounds, a time is the median. `show` gives, per plan, the geometric
mean and the least of the vendor's time / the time of the fastest kernel: of the other pipelines, of these, and of both.
No problem is left out that both have kernels for.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Mapping, Sequence
from math import exp, log
from pathlib import Path
from typing import Any

from benchmarks.results import load, machine, save
from tilewise.collect import Plan, compile_ahead
from tilewise.kernels.triton import Kernel
from tilewise.kernels.vendor import VendorCall

_VENDOR = VendorCall.backend_name
_GROUPS = ("others", "these", "both")


def measured(plan: Plan, budget_s: float) -> list[dict[str, Any]]:
    """Return an entry per problem of the plan, begun within the budget: milliseconds and failures by kernel."""
    from tilewise.collect.engines import GpuEngine

    compile_ahead(plan, None, lambda done, of: None)
    engine, deadline, rows = GpuEngine(plan, 0), time.monotonic() + budget_s, []
    configs = [kernel.config for kernel in plan.pool.kernels]
    for item in plan.items:
        if time.monotonic() > deadline:
            break
        outcomes = dict(zip(configs, engine.measure(item, {}, lambda kernel: None), strict=True))
        ms = {c: statistics.median(o.samples.times) for c, o in outcomes.items() if o.samples is not None}
        failed = {c: o.error for c, o in outcomes.items() if o.status not in ("ok", "unsupported")}
        rows.append({"origin": item.origin, "problem": item.problem.to_dict(), "ms": ms, "failed": failed})
    return rows


def ratios(rows: Sequence[Mapping[str, Any]], pipelines: Sequence[str]) -> dict[str, list[float]]:
    """Return vendor's time / time of the fastest kernel per problem, for each of others, these and both."""
    found: dict[str, list[float]] = {name: [] for name in _GROUPS}
    for row in rows:
        fastest: dict[str, float] = {}
        for config, ms in row["ms"].items():
            vendor = config.startswith(f"{_VENDOR}_")
            name = _VENDOR if vendor else "these" if Kernel.from_config(config).pipeline in pipelines else "others"
            fastest[name] = min(fastest.get(name, ms), ms)
        if len(fastest) == len(_GROUPS):
            vendor_ms = fastest.pop(_VENDOR)
            for name, ms in {**fastest, "both": min(fastest.values())}.items():
                found[name].append(vendor_ms / ms)
    return found


def text(result: Mapping[str, Any], pipelines: Sequence[str]) -> str:
    """Return a Markdown table with a line per plan."""
    lines = ["| plan | problems | others: geomean / least | these | both |", "| --- | ---: | ---: | ---: | ---: |"]
    for name in dict.fromkeys(entry["plan"] for entry in result["entries"]):
        found = ratios([entry for entry in result["entries"] if entry["plan"] == name], pipelines)
        cells = [f"{exp(sum(map(log, r)) / len(r)):.2f} / {min(r):.2f}" if r else "-" for r in found.values()]
        lines.append(f"| {name} | {len(found['both'])} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True, dest="verb")
    run, show = verbs.add_parser("run"), verbs.add_parser("show")
    run.add_argument("plans", nargs="+", type=Path)
    run.add_argument("--output", type=Path, required=True)
    run.add_argument("--budget-s", type=float, default=60.0)
    show.add_argument("file", type=Path)
    show.add_argument("--pipelines", default="merged,mergedbox,relay")
    args = parser.parse_args()
    if args.verb == "show":
        print(text(load(args.file), args.pipelines.split(",")))
        return 0
    result: dict[str, Any] = {"benchmark": "pipelines", "machine": machine(), "entries": []}
    for file in args.plans:
        rows = measured(Plan.from_dict(load(file)), args.budget_s)
        result["entries"] += [{"plan": file.stem, **row} for row in rows]
        save(args.output, result)
    return 0


if __name__ == "__main__":
    sys.exit(main())

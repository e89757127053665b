"""Valid measurements a second of ``tilewise collect``, on one GPU and on several of one host.

``python -m benchmarks.collect_rate PLAN.json [--problems 300] [--devices 1,2,4] [--jobs N] [--output FILE.json]``

Measures an even sample of a plan's problems with the plan's whole pool, exactly as a sweep does: isolated workers,
every result checked, timing in rounds, a journal synced to the disk. Compiling comes first and is timed apart: a sweep
does it once for all its problems. The rate is that of the sweep, valid rows / (the last problem's end - the first one's
start, over all devices); starting the workers, which a sweep pays once as well, is in `wall_s` only. Loading each
program into the GPU counts: a longer sweep is faster still.

Needs numpy, pyarrow, torch and triton only, and ``src`` on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.results import RESULTS, machine, save, spread_evenly
from tilewise.collect.ahead import compile_ahead
from tilewise.collect.engine import Device, Engine, EngineFactory
from tilewise.collect.plan import Item, Plan, load_plan
from tilewise.collect.progress import ProgressLine
from tilewise.collect.results import Outcome
from tilewise.collect.run import Progress, collect
from tilewise.errors import MeasurementError, TilewiseError, UsageError
from tilewise.markdown import table


class NotingEngine:
    """Another engine that notes when each problem began and ended, in a file that all workers append to."""

    def __init__(self, engine: Engine, log: Path) -> None:
        self._engine = engine
        self._log = log

    def device(self) -> Device:
        """Describe the device."""
        return self._engine.device()

    def measure(
        self, item: Item, known: Mapping[int, Outcome], begin: Callable[[int | None], None], careful: bool = False
    ) -> list[Outcome]:
        """See :class:`tilewise.collect.engine.Engine`."""
        start = time.monotonic()  # one clock for all processes of a machine
        outcomes = self._engine.measure(item, known, begin, careful)
        with self._log.open("a") as file:  # a line this short is appended at once
            file.write(json.dumps([start, time.monotonic(), self._engine.device().hw_uuid]) + "\n")
        return outcomes


def noting_engine(factory: EngineFactory, log: Path, plan: Plan, index: int) -> NotingEngine:
    """An :data:`~tilewise.collect.engine.EngineFactory` once its first two arguments are bound."""
    return NotingEngine(factory(plan, index), log)


def gpu_engine(plan: Plan, index: int) -> Engine:
    """The real one; torch is imported in the worker only."""
    from tilewise.collect.gpu import GpuEngine

    return GpuEngine(plan, index)


def sample(plan: Plan, problems: int) -> Plan:
    """The plan with an even sample of its problems."""
    items = tuple(plan.items[i] for i in spread_evenly(len(plan.items), problems))
    return dataclasses.replace(plan, items=items, run_id="collect_rate")


def one_run(plan: Plan, devices: int, factory: EngineFactory, progress: Progress) -> dict[str, Any]:
    """Collect the plan on the first `devices` GPUs."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        start = time.monotonic()
        report = collect(
            plan, Path(folder) / "run.parquet", partial(noting_engine, factory, log), range(devices), progress
        )
        wall = time.monotonic() - start
        noted = [json.loads(line) for line in log.read_text().splitlines()]
    valid = report.by_status.get("ok", 0)
    sweep = max(end for _, end, _ in noted) - min(begin for begin, _, _ in noted)
    return {
        "devices": devices,
        "rows": report.rows,
        "valid": valid,
        "by_status": report.by_status,
        "sweep_s": sweep,
        "wall_s": wall,
        "rate": valid / sweep,
        "problems_a_device": [sum(u == uuid for _, _, u in noted) for uuid in sorted({u for _, _, u in noted})],
    }


def text(result: Mapping[str, Any]) -> str:
    """The result as a Markdown table."""
    runs = result["runs"]
    header = ["GPUs", "valid rows", "sweep, s", "valid rows a second", "against one", "with start, s"]
    first = next((r for r in runs if r["devices"] == 1), None)
    rows = [
        [
            str(r["devices"]),
            f"{r['valid']:,}",
            f"{r['sweep_s']:.1f}",
            f"{r['rate']:.0f}",
            f"{r['rate'] / first['rate']:.2f}x" if first else "-",
            f"{r['wall_s']:.1f}",
        ]
        for r in runs
    ]
    return table(header, rows, words=0)


def main() -> int:
    """Exit status: 0 done, 1 measuring failed, 2 a mistake of the caller."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.collect_rate", description=__doc__.partition("\n")[0])
    parser.add_argument("plan", type=Path)
    parser.add_argument("--problems", type=int, default=300)
    parser.add_argument("--devices", default="1", help="how many GPUs, one run for each number: 1,2,4")
    parser.add_argument("--jobs", type=int, help="compiling processes; default: one a core")
    parser.add_argument("--output", type=Path, default=RESULTS / "collect_rate.json")
    args = parser.parse_args()
    try:
        counts = [int(n) for n in args.devices.split(",")]
        plan, progress = sample(load_plan(args.plan), args.problems), ProgressLine()
        about = machine()
        if max(counts) > len(about["devices"]):
            raise MeasurementError(f"there are {len(about['devices'])} GPUs, --devices asks for {max(counts)}")
        start = time.monotonic()
        compile_ahead(plan, args.jobs, lambda done, of: progress("compiling", done, of))
        compiling = time.monotonic() - start
        runs = [one_run(plan, n, gpu_engine, progress) for n in counts]
    except TilewiseError as e:
        print(f"collect_rate: error: {e}", file=sys.stderr)
        return 2 if isinstance(e, UsageError) else 1
    result = {
        "benchmark": "collect_rate",
        "target": plan.target.name,
        "machine": about,
        "problems": len(plan.items),
        "kernels": len(plan.pool),
        "compile_s": compiling,
        "runs": runs,
    }
    save(args.output, result)
    print(text(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""The rate of ``tilewise collect`` in valid measurements per second, on one GPU and on several of one host.

``python -m benchmarks.measuring.collect_rate PLAN.json [--problems 300] [--devices 1,2,4] [--jobs N] [--output FILE]``

Measures an even sample of a plan's problems with the whole pool, exactly as a sweep does: isolated workers, checked
results, timing in rounds, a journal synced to the disk. Compilation comes first and is timed separately, because a
sweep compiles once for all problems. The rate is valid rows / (end of the last problem - start of the first one, over
all devices). The start of the workers, which a sweep also pays once, is in `wall_s` only. Loading each binary into the
GPU is included, so a longer sweep is faster. Workers begin seconds apart, one end is the last; `rate_of_all` is the
rate while all devices are at work, which a sweep of hours comes near.

Needs numpy, pyarrow, torch and triton only, and ``src`` on PYTHONPATH.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.results import RESULTS, machine, save, spread_evenly
from tilewise.collect import (
    Item,
    Outcome,
    Plan,
    ProgressCallback,
    ProgressLine,
    collect_with_engine,
    compile_ahead,
    load_plan,
)
from tilewise.collect.engines import Device, Engine, EngineFactory
from tilewise.errors import MeasurementError, TilewiseError, UsageError
from tilewise.markdown import table


class Noted(NamedTuple):
    """A measured problem: when, on which device, and its number of valid rows."""

    begin: float
    end: float
    device: str
    valid: int


class NotingEngine:
    """A wrapper of an engine that logs start and end of each problem to a file shared by all workers."""

    def __init__(self, engine: Engine, log: Path) -> None:
        self._engine = engine
        self._log = log

    def device(self) -> Device:
        """Return the description of the device."""
        return self._engine.device()

    def measure(
        self, item: Item, known: Mapping[int, Outcome], begin: Callable[[int | None], None], careful: bool = False
    ) -> list[Outcome]:
        """See :class:`tilewise.collect.engines.Engine`."""
        start = time.monotonic()  # one clock for all processes of a machine
        outcomes = self._engine.measure(item, known, begin, careful)
        with self._log.open("a") as file:  # appending such a short line is atomic
            valid = sum(outcome.status == "ok" for outcome in outcomes)
            file.write(json.dumps([start, time.monotonic(), self._engine.device().hw_uuid, valid]) + "\n")
        return outcomes


def noting_engine(factory: EngineFactory, log: Path, plan: Plan, index: int) -> NotingEngine:
    """Return an engine; with its first two arguments bound it is an :data:`~tilewise.collect.engines.EngineFactory`."""
    return NotingEngine(factory(plan, index), log)


def gpu_engine(plan: Plan, index: int) -> Engine:
    """Return the GPU engine; torch is imported in the worker only."""
    from tilewise.collect.engines import GpuEngine

    return GpuEngine(plan, index)


def sample(plan: Plan, problems: int) -> Plan:
    """Return the plan with an even sample of its problems."""
    items = tuple(plan.items[i] for i in spread_evenly(len(plan.items), problems))
    return dataclasses.replace(plan, items=items, run_id="collect_rate")


def one_run(plan: Plan, devices: int, factory: EngineFactory, progress: ProgressCallback) -> dict[str, Any]:
    """Collect the plan on the first `devices` GPUs."""
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "log"
        start = time.monotonic()
        report = collect_with_engine(
            plan, Path(folder) / "run.parquet", partial(noting_engine, factory, log), range(devices), progress
        )
        wall = time.monotonic() - start
        noted = [Noted(*json.loads(line)) for line in log.read_text().splitlines()]
    valid = report.by_status.get("ok", 0)
    sweep = max(p.end for p in noted) - min(p.begin for p in noted)
    by_device = [[p for p in noted if p.device == uuid] for uuid in sorted({p.device for p in noted})]
    return {
        "devices": devices,
        "rows": report.rows,
        "valid": valid,
        "by_status": report.by_status,
        "sweep_s": sweep,
        "wall_s": wall,
        "rate": valid / sweep,
        "rate_of_all": rate_of_all(by_device),
        "problems_a_device": [len(problems) for problems in by_device],
    }


def rate_of_all(by_device: Sequence[Sequence[Noted]]) -> float | None:
    """Return the valid rows a second while all devices are at work; None if there is no such time.

    A problem that lasts beyond that time counts by its share within.
    """
    begin = max(min(p.begin for p in problems) for problems in by_device)
    end = min(max(p.end for p in problems) for problems in by_device)
    if end <= begin:
        return None
    rows = sum(
        p.valid * max(0.0, min(p.end, end) - max(p.begin, begin)) / (p.end - p.begin)
        for problems in by_device
        for p in problems
    )
    return rows / (end - begin)


def text(result: Mapping[str, Any]) -> str:
    """Return the result as a Markdown table."""
    runs = result["runs"]
    header = ["GPUs", "valid rows", "sweep, s", "valid rows a second", "against one"]
    header += ["while all work", "against one", "with start, s"]
    first = next((r for r in runs if r["devices"] == 1), None)
    rows = [
        [
            str(r["devices"]),
            f"{r['valid']:,}",
            f"{r['sweep_s']:.1f}",
            f"{r['rate']:.0f}",
            f"{r['rate'] / first['rate']:.2f}x" if first else "-",
            f"{r['rate_of_all']:.0f}" if r["rate_of_all"] else "-",
            f"{r['rate_of_all'] / first['rate_of_all']:.2f}x" if first and r["rate_of_all"] else "-",
            f"{r['wall_s']:.1f}",
        ]
        for r in runs
    ]
    return table(header, rows, words=0)


def main() -> int:
    """Run the command and return its exit status: 0 done, 1 measuring failed, 2 a mistake of the caller."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.measuring.collect_rate", description=__doc__.partition("\n")[0]
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("--problems", type=int, default=300)
    parser.add_argument("--devices", default="1", help="numbers of GPUs, one run each: 1,2,4")
    parser.add_argument("--jobs", type=int, help="compiling processes; default: one per core")
    parser.add_argument("--output", type=Path, default=RESULTS / "collect_rate.json")
    args = parser.parse_args()
    try:
        counts = [int(n) for n in args.devices.split(",")]
        plan, progress = sample(load_plan(args.plan), args.problems), ProgressLine()
        about = machine()
        if max(counts) > len(about["devices"]):
            raise MeasurementError(f"--devices needs {max(counts)} GPUs, this machine has {len(about['devices'])}")
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

"""Schedules of faults: kills, full disks, I/O errors, jumps of the clock and broken networks.

python -m benchmarks.robustness.campaign [--schedules 100] [--seed 0] [--scenario NAME]... [--only N] [--save]

A fault hits a random step of a scenario. On a disk, a step is a call that changes it (a write, rename, link, ...),
counted below the kernel's interface, so that it covers Python, SQLite and Arrow alike. In a network, it is a change of
direction on a connection. After each schedule the invariants of tests/faults must hold, the same work must complete
without help, and hold again. Equal scenario, seed and number give an equal schedule, in a network about the same step;
a failure prints the command that repeats it, and the exit status is 1. Scenarios in a network need the extra `servers`.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT / "src"), str(ROOT / "tests")]
os.environ.setdefault("OMP_NUM_THREADS", "1")
SCRATCH = "/dev/shm" if Path("/dev/shm").is_dir() else None


def main() -> int:
    """Run the command and return its exit status."""
    from faults.catalogue import SCENARIOS
    from faults.scenarios import quiet

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--schedules", type=int, default=100, help="for each scenario")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--scenario", action="append", choices=list(SCENARIOS))
    parser.add_argument("--only", type=int, help="the number of one schedule")
    parser.add_argument("--save", action="store_true", help="write the counts to benchmarks/results/campaign.json")
    args = parser.parse_args()
    quiet()
    with tempfile.TemporaryDirectory(dir=SCRATCH) as scratch:
        numbers = range(args.schedules) if args.only is None else (args.only,)
        broken = 0
        for name in args.scenario or SCENARIOS:
            row = campaign(name, numbers, args.seed, Path(scratch))
            broken += row["broken"]
            if args.save:
                keep(row)
    return 1 if broken else 0


def keep(row: dict[str, Any]) -> None:
    """Add the counts to the result file; those of the same scenario and seed are replaced."""
    from benchmarks.results import RESULTS, load, save

    path = RESULTS / "campaign.json"
    known = {(r["scenario"], r["seed"]): r for r in load(path)["scenarios"]} if path.is_file() else {}
    rows = [*(known | {(row["scenario"], row["seed"]): row}).values()]
    rows.sort(key=lambda r: (r["scenario"], r["seed"]))
    total, broken = (sum(r[name] for r in rows) for name in ("schedules", "broken"))
    command = "python -m benchmarks.robustness.campaign --schedules N --seed SEED --scenario NAME --save"
    save(path, {"command": command, "schedules": total, "broken": broken, "scenarios": rows})


def campaign(name: str, numbers: range | tuple[int], seed: int, scratch: Path) -> dict[str, Any]:
    """Run schedules of one scenario; return their counts."""
    from faults.catalogue import SCENARIOS
    from faults.schedule import count_steps, run_schedule

    began, scenario = time.monotonic(), SCENARIOS[name]
    steps = count_steps(scenario, _empty(scratch / name))
    kinds: Counter[str] = Counter()
    ends: Counter[str] = Counter()
    left = broken = 0
    for number in numbers:
        fault = scenario.injector.draw(random.Random(f"{name}-{seed}-{number}"), steps)
        verdict = run_schedule(scenario, fault, _empty(scratch / name))
        kinds[fault.kind] += 1
        ends[verdict.ended] += 1
        left += verdict.left > 0
        if verdict.wrong:
            broken += 1
            print(f"python -m benchmarks.robustness.campaign --scenario {name} --seed {seed} --only {number}")
            print(f"  {fault.kind} at step {fault.at} of {steps}:", *verdict.wrong, sep="\n    ", flush=True)
    row: dict[str, Any] = {
        "scenario": name,
        "seed": seed,
        "steps": steps,
        "schedules": len(numbers),
        "broken": broken,
        "files_left": left,
    }
    row |= {"faults": dict(sorted(kinds.items())), "ended": dict(sorted(ends.items()))}
    row |= {"seconds": round(time.monotonic() - began)}
    print(row, flush=True)
    return row


def _empty(folder: Path) -> Path:
    folder.mkdir()
    return folder


def preloaded(scratch: Path) -> None:
    """Start this command again with the library of faults preloaded; it does not return."""
    from faults.disk import fault_library

    environment = {**os.environ, "LD_PRELOAD": str(fault_library(scratch)), "MLFLOW_DISABLE_TELEMETRY": "true"}
    environment["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
    os.execve(sys.executable, [sys.executable, "-m", "benchmarks.robustness.campaign", *sys.argv[1:]], environment)


if __name__ == "__main__":
    if "LD_PRELOAD" not in os.environ:
        preloaded(Path(tempfile.mkdtemp()))
    raise SystemExit(main())

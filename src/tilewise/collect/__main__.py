"""Run a plan on a bare GPU machine: ``python -m tilewise.collect PLAN.json OUT.parquet [--devices 0,1] [--jobs N]``.

Needs numpy, pyarrow, torch and triton only; ``tilewise collect`` does the same where everything is installed.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from tilewise.collect.plan import load_plan
from tilewise.collect.progress import ProgressLine
from tilewise.collect.run import collect_on_gpus
from tilewise.errors import TilewiseError, UsageError


def main() -> int:
    """Exit status: 0 done, 1 measuring failed, 2 a mistake of the caller."""
    parser = argparse.ArgumentParser(prog="python -m tilewise.collect", description=__doc__)
    parser.add_argument("plan", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--devices", default="0", help="GPU indices, separated by commas")
    parser.add_argument("--jobs", type=int, help="compiling processes; default: one a core")
    args = parser.parse_args()
    try:
        devices = [int(d) for d in args.devices.split(",")]
        report = collect_on_gpus(load_plan(args.plan), args.output, devices, args.jobs, ProgressLine())
    except TilewiseError as e:
        print(f"tilewise: error: {e}", file=sys.stderr)
        return 2 if isinstance(e, UsageError) else 1
    print(f"{report.path}: {report.rows} rows, {report.valid} valid; {report.by_status}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

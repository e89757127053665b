"""Measure a plan on a bare GPU machine: ``python -m tilewise.collect PLAN.json OUT.parquet``.

Needs numpy, pyarrow, torch and triton only; ``tilewise collect`` does the same where everything is installed. Repeat
the same command to resume a run that was killed or whose budget ended.

Exit status: 0 everything is measured and the table is written, 1 measuring failed, 2 the call is wrong, 4 the budget
ended and problems are left.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tilewise.checks import require_format
from tilewise.collect._collectors import CollectTask, collect_plan
from tilewise.collect._forecast import forecast_plan
from tilewise.collect._plan import load_plan
from tilewise.collect._run import CollectLimits, Devices
from tilewise.errors import TilewiseError, UnfinishedError, UsageError

EXIT_UNFINISHED = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return the exit status."""
    args = _parser().parse_args(argv)
    try:
        require_format(args.output, ".parquet")
        plan, devices = load_plan(args.plan), _devices(args.devices)
        limits = CollectLimits(args.budget_s, args.partial)
        if args.dry_run:
            print(forecast_plan(plan, args.output, devices, args.jobs, args.like))
            return 0
        report = collect_plan(CollectTask(plan, args.output, devices, limits, args.jobs, args.libraries, args.memory))
        print(report)
        report.require_complete()
    except TilewiseError as e:
        print(f"tilewise: error: {e}", file=sys.stderr)
        if isinstance(e, UnfinishedError):
            return EXIT_UNFINISHED
        return 2 if isinstance(e, UsageError) else 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tilewise.collect", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--devices", default="0", help="GPU indices, separated by commas, or all; default: 0")
    parser.add_argument("--jobs", type=int, help="number of compiling processes; default: one per core")
    parser.add_argument(
        "--libraries", help="CK Tile libraries (files or folders, separated by colons) for a plan of CK Tile kernels"
    )
    parser.add_argument(
        "--memory", choices=["host", "device"], help="memory that CK Tile convolutions take; default: device"
    )
    parser.add_argument("--budget-s", type=float, help="begin no problem after this many seconds of measuring")
    parser.add_argument(
        "--partial", action="store_true", help="write a table of the measured problems if the budget ends first"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the remaining work and how long it may take")
    parser.add_argument("--like", type=Path, help="an earlier table whose rate --dry-run expects")
    return parser


def _devices(text: str) -> Devices:
    """Parse GPU indices.

    Raises:
        UsageError: the text is neither ``all`` nor a list of numbers.
    """
    if text == "all":
        return "all"
    try:
        return [int(d) for d in text.split(",")]
    except ValueError as e:
        raise UsageError(f"--devices takes GPU indices separated by commas, or all; got {text!r}") from e


if __name__ == "__main__":
    sys.exit(main())

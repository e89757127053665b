"""Run a plan on a bare GPU machine: ``python -m tilewise.collect PLAN.json OUT.parquet``.

Needs numpy, pyarrow, torch and triton only; ``tilewise collect`` does the same where everything is installed. A killed
run, or one whose budget was spent, goes on when the same command is given again.

Exit status: 0 all is measured and the table written, 1 measuring failed, 2 a mistake of the caller, 4 the budget is
spent and problems are left.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from tilewise.collect.ck_kernels import find_kernels_of
from tilewise.collect.forecast import forecast
from tilewise.collect.plan import load_plan
from tilewise.collect.progress import ProgressLine
from tilewise.collect.run import Devices, Limits, collect_from_libraries, collect_on_gpus
from tilewise.errors import TilewiseError, UnfinishedError, UsageError

EXIT_LEFT = 4


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line; the exit status."""
    args = _parser().parse_args(argv)
    try:
        plan, devices = load_plan(args.plan), _devices(args.devices)
        limits = Limits(args.budget_s, args.partial)
        if args.dry_run:
            print(forecast(plan, args.output, devices, args.jobs, args.like))
            return 0
        if plan.pool.backend.name == "ck_tile":
            found = find_kernels_of(plan, args.libraries, args.memory)
            report = collect_from_libraries(plan, args.output, found, devices, ProgressLine(), limits)
        else:
            report = collect_on_gpus(plan, args.output, devices, args.jobs, ProgressLine(), limits)
        print(report)
        report.require_complete()
    except TilewiseError as e:
        print(f"tilewise: error: {e}", file=sys.stderr)
        if isinstance(e, UnfinishedError):
            return EXIT_LEFT
        return 2 if isinstance(e, UsageError) else 1
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m tilewise.collect", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("plan", type=Path)
    parser.add_argument("output", type=Path)
    parser.add_argument("--devices", default="0", help="GPU indices, separated by commas, or all; default: 0")
    parser.add_argument("--jobs", type=int, help="compiling processes; default: one a core")
    parser.add_argument(
        "--libraries", help="CK Tile's, files and folders separated by colons, for a plan of its kernels"
    )
    parser.add_argument("--memory", choices=["host", "device"], help="that its convolutions take; default: device")
    parser.add_argument("--budget-s", type=float, help="begin no problem after so many seconds of measuring")
    parser.add_argument("--partial", action="store_true", help="write what there is where the budget ends first")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done and how long it may take")
    parser.add_argument("--like", type=Path, help="an earlier table, for the rate that --dry-run expects")
    return parser


def _devices(text: str) -> Devices:
    """GPU indices.

    Raises:
        UsageError: the text is no list of numbers.
    """
    if text == "all":
        return "all"
    try:
        return [int(d) for d in text.split(",")]
    except ValueError as e:
        raise UsageError(f"--devices takes GPU indices separated by commas, or all; got {text!r}") from e


if __name__ == "__main__":
    sys.exit(main())

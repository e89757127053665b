"""Write the problem sets that are part of tilewise, or say what they hold.

python -m tilewise.cli.problems write                  after a generator or the list of sets has changed
python -m tilewise.cli.problems describe [NAME_OR_FILE ...] [--op OP]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

import numpy as np

from tilewise.cli.compose import compose
from tilewise.cli.main import reporting_errors
from tilewise.collect.plan import Item
from tilewise.collect.problems import SETS, problem_set
from tilewise.collect.problems.kinds import labels
from tilewise.data.splits import holdout_mask
from tilewise.files import write_text


def _main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tilewise.cli.problems", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("action", choices=("write", "describe"))
    parser.add_argument("sets", nargs="*", help="names or .csv files; default: every named set")
    parser.add_argument("--op", default="grouped_conv", help="the op of .csv files")
    args = parser.parse_args(argv)
    if args.action == "write":
        for name in args.sets or SETS:
            write_text(SETS[name].path, SETS[name].text())
        return
    fraction = float(compose().holdout.fraction)
    for name in args.sets or SETS:
        op = SETS[name].op if name in SETS else args.op
        sys.stdout.write(f"**{name}**\n\n{counts(problem_set(op, name), op, fraction)}\n")


def counts(items: Sequence[Item], op: str, fraction: float) -> str:
    """A Markdown table: how many problems carry each label, and how many of them train and validate."""
    held = held_out(items, op, fraction)
    of_item = [labels(item) for item in items]
    rows = [f"| all | {len(items)} | {int((~held).sum())} | {int(held.sum())} |"]
    for label in sorted({label for found in of_item for label in found}):
        has = np.array([label in found for found in of_item])
        rows.append(f"| {label} | {has.sum()} | {(has & ~held).sum()} | {(has & held).sum()} |")
    return "\n".join(("| | problems | training | validation |", "| --- | --- | --- | --- |", *rows, ""))


def held_out(items: Sequence[Item], op: str, fraction: float) -> np.ndarray:
    """Which problems are for validation, bool, (problems,)."""
    return np.asarray(holdout_mask(op, np.array([i.problem.group_key for i in items]), fraction))


if __name__ == "__main__":
    raise SystemExit(reporting_errors(lambda: _main(sys.argv[1:])))

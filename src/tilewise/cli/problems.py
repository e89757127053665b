"""Write the problem sets that are part of tilewise, or count their problems by label.

python -m tilewise.cli.problems write                  after a generator or the list of sets has changed
python -m tilewise.cli.problems describe [NAME_OR_FILE ...] [--op OP] [--page docs/problems.md]
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tilewise.cli.compose import compose
from tilewise.cli.main import reporting_errors
from tilewise.collect import Item
from tilewise.collect.problems import SETS, load_problem_set, problem_labels
from tilewise.data import holdout_mask
from tilewise.files import write_text
from tilewise.markdown import fill, table
from tilewise.ops import OPS


def _main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(
        prog="python -m tilewise.cli.problems", description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("action", choices=("write", "describe"))
    parser.add_argument("sets", nargs="*", help="names or .csv files; default: every named set")
    parser.add_argument("--op", choices=tuple(OPS), default="grouped_conv", help="the op of .csv files")
    parser.add_argument("--page", type=Path, help="fill this page with the counts instead of printing them")
    args = parser.parse_args(argv)
    if args.action == "write":
        if args.sets or args.page:
            parser.error("write takes no other arguments: it writes every set")
        for written in SETS.values():
            write_text(written.path, written.text())
        return
    tables = {name: _counts_of(name, args.op) for name in args.sets or SETS}
    if args.page:
        write_text(args.page, fill(args.page.read_text(), tables))
    else:
        sys.stdout.write("\n".join(f"**{name}**\n\n{text}" for name, text in tables.items()))


def _counts_of(name: str, op_of_files: str) -> str:
    op = SETS[name].op if name in SETS else op_of_files
    return counts(load_problem_set(op, name), op, float(compose().holdout.fraction))


def counts(items: Sequence[Item], op: str, fraction: float) -> str:
    """Return a Markdown table: problems by label, and how many of them are used for training and validation."""
    held_out = np.asarray(holdout_mask(op, np.array([i.problem.group_key for i in items]), fraction))
    labels = [problem_labels(item) for item in items]
    masks = {label: np.array([label in of_item for of_item in labels]) for label in frozenset().union(*labels)}
    rows = [("all", np.ones(len(items), dtype=bool)), *sorted(masks.items())]
    counted = [(label, *(str(int(n.sum())) for n in (mask, mask & ~held_out, mask & held_out))) for label, mask in rows]
    return table(("", "problems", "training", "validation"), counted)


if __name__ == "__main__":
    raise SystemExit(reporting_errors(lambda: _main(sys.argv[1:])))

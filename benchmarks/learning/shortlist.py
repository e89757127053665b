"""The loss of a shortlist by the cost model alone: a table of docs/learnings.md.

python -m benchmarks.learning.shortlist TARGET [--data data] [--first 4 8 12 16 24 32 48]

Out of fold: the cost model of each fold ranks the kernels of problems that it was not calibrated on. The figures are
the efficiency of the fastest among the first few kernels, an upper bound for trees, and the share of problems whose
fastest kernel is not among them. `benchmarks.learning.ablation shortlist` has the resulting models.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.learning.learning_curve import recorded
from tilewise.markdown import table as markdown_table
from tilewise.metrics import place_within
from tilewise.ops import Target
from tilewise.train import Floats, ModelSettings, Table, make_folds, renumbered
from tilewise.train.cost_model import Baselines


def best_of_first(table: Table, first: Sequence[int]) -> Floats:
    """Return the efficiency of the fastest among the first kernels by the cost model, of shape (first, problems)."""
    baselines, found = Baselines(table, ModelSettings(), 0), []
    for fold in make_folds(table, 5, 0):
        rows, rates = table.measured_rows_of(fold.test), baselines.of(fold.train).rates
        assert rates is not None
        problem = renumbered(table.problem[rows])
        place = place_within(problem, rates[rows])
        best = np.zeros((len(first), len(fold.test)))
        for reached, most in zip(best, first, strict=True):
            np.maximum.at(reached, problem[place < most], table.efficiency[rows][place < most])
        found.append(best)
    return np.concatenate(found, axis=1)


def main(argv: list[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Target.parse)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--first", type=int, nargs="+", default=[4, 8, 12, 16, 24, 32, 48])
    args = parser.parse_args(argv)
    best = 100 * best_of_first(recorded(args.target, args.data), args.first)
    head = ("the cost model's first", "mean", "P10", "P1", "worst", "fastest missed")
    print(
        markdown_table(
            head,
            [
                (
                    str(n),
                    f"{e.mean():.3f}",
                    *(f"{np.percentile(e, q):.2f}" for q in (10, 1)),
                    f"{e.min():.1f}",
                    f"{100 * (e < 100).mean():.2f} %",
                )
                for n, e in zip(args.first, best, strict=True)
            ],
        )
    )


if __name__ == "__main__":
    main()

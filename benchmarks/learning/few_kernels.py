"""The value of problems with only their best few kernels measured, out of fold: a table of docs/learnings.md.

python -m benchmarks.learning.few_kernels TARGET [--data data] [--share 0.33] [--kernels 6 12 24] [--fold I ...]

Of a fold's training problems that were measured with the whole pool, a share keeps all rows. A model trained on these
ranks the kernels of the others, which keep the rows of their best ranked kernels; then a model is trained on both. The
last row adds the rest of the table: problems that were measured with few kernels.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tilewise.arch import load_arch
from tilewise.data import read_measurements
from tilewise.markdown import table as markdown_table
from tilewise.metrics import place_within
from tilewise.ops import Target
from tilewise.train import (
    Floats,
    Fold,
    Ints,
    ModelSettings,
    Table,
    TrainingData,
    TrainSettings,
    build_table,
    fold_score,
    make_folds,
    pool_of,
    selections_by_score,
)


@dataclass(frozen=True)
class Learner:
    """A trainer on some rows of a table that scores problems without those rows."""

    table: Table
    settings: TrainSettings

    def scores(self, rows: Ints, test: Ints) -> Floats:
        """Return the scores of the rows of the problems `test`, by a model trained on `rows`."""
        seen = self.table.take(np.sort(np.concatenate([rows, self.table.rows_of(test)])))
        of_test = np.isin(np.unique(np.concatenate([self.table.problem[rows], test])), test)
        fold = Fold(np.flatnonzero(~of_test), np.flatnonzero(of_test))
        return fold_score(TrainingData.prepare(seen, self.settings), fold, self.settings.model)


def choices(
    learner: Learner, train: Ints, share: float, kernels: Sequence[int], rng: np.random.Generator
) -> Iterator[tuple[str, Ints]]:
    """Yield training sets: a name, and rows of the training problems."""
    table = learner.table
    whole, few = train[table.judges[train]], train[~table.judges[train]]
    drawn = rng.permutation(whole)[: round(share * len(whole))]
    known, others = table.rows_of(drawn), np.setdiff1d(whole, drawn)
    yield f"{share:.0%} of the problems", known
    rows, score = table.rows_of(others), learner.scores(known, others)
    place = place_within(table.problem[rows], score)
    for count in kernels:
        yield f"... and {count} kernels of each other", np.concatenate([known, rows[place < count]])
    yield "all problems, whole pool", table.rows_of(whole)
    if len(few):
        yield "all problems, and those measured with few", table.rows_of(train)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Target.parse)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--share", type=float, default=0.33)
    parser.add_argument("--kernels", type=int, nargs="*", default=[6, 12, 24])
    parser.add_argument("--fold", type=int, nargs="*", default=[0, 1, 2])
    parser.add_argument("--trees", type=int, default=ModelSettings().n_estimators)
    parser.add_argument("--threads", type=int, default=0)
    args = parser.parse_args()
    settings = TrainSettings(replace(ModelSettings(), n_estimators=args.trees), threads=args.threads)
    frame = read_measurements(args.data, args.target)
    pool, arch = pool_of(frame, args.target), load_arch(args.target.arch)
    table = build_table(frame, args.target, pool, arch, settings.holdout_fraction)
    learner, rng = Learner(table, settings), np.random.default_rng(0)
    rows: dict[str, int] = {}
    found: dict[str, list[Floats]] = {}
    for number, fold in enumerate(make_folds(table, settings.n_splits, settings.seed)):
        if number in args.fold:
            print(f"fold {number}", file=sys.stderr, flush=True)
            for name, learnt in choices(learner, fold.train, args.share, args.kernels, rng):
                scores = learner.scores(learnt, fold.test)
                efficiency = selections_by_score(table, table.measured_rows_of(fold.test), scores).efficiency
                found.setdefault(name, []).append(efficiency)
                rows[name] = rows.get(name, 0) + len(learnt) // len(args.fold)
    lines = []
    for name, parts in found.items():
        e = 100 * np.concatenate(parts)
        lines.append([name, f"{rows[name]:,}", f"{e.mean():.2f}", f"{np.percentile(e, 10):.2f}", f"{e.min():.1f}"])
    print(markdown_table(["trained on", "rows", "mean", "P10", "worst"], lines), end="")


if __name__ == "__main__":
    main()

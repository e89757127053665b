"""What problems teach of which only the best few kernels were measured, out of fold: a table of docs/learnings.md.

python -m benchmarks.few_kernels TARGET [--data data] [--share 0.33] [--kernels 6 12 24] [--fold I ...] [--trees N]

Of a fold's training problems that were measured with the whole pool, a share keeps all its rows. A model that learns
from those ranks the others' kernels, and the others keep the rows of the best so many. Then one learns from both. The
last row has all that the table holds besides: problems that were measured with few kernels in the first place.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from tilewise.arch import load_arch
from tilewise.data.schema import read_measurements
from tilewise.markdown import table as markdown_table
from tilewise.metrics import place_within
from tilewise.ops import Target
from tilewise.train import ModelSettings, TrainSettings, pool_of
from tilewise.train.baseline import Baselines
from tilewise.train.boosting import Bins
from tilewise.train.cross_validation import Fold, fold_score, judge, make_folds
from tilewise.train.dataset import Floats, Ints, Table, build_table


@dataclass(frozen=True)
class Learner:
    """Trains on some rows of a table and scores problems that they do not hold."""

    table: Table
    settings: TrainSettings

    def scores(self, rows: Ints, test: Ints) -> Floats:
        """Of the rows of the problems `test`, learnt from `rows`."""
        seen = self.table.take(np.sort(np.concatenate([rows, self.table.rows_of(test)])))
        of_test = np.isin(np.unique(np.concatenate([self.table.problem[rows], test])), test)
        model = self.settings.model
        bins = Bins(np.ascontiguousarray(seen.matrix), seen.features.names, model.max_bin, self.settings.threads)
        fold = Fold(np.flatnonzero(~of_test), np.flatnonzero(of_test))
        return fold_score(seen, bins, Baselines(seen, model, self.settings.seed), fold, model, self.settings)


def choices(
    learner: Learner, train: Ints, share: float, kernels: Sequence[int], rng: np.random.Generator
) -> Iterator[tuple[str, Ints]]:
    """What to learn from, by name: rows of the training problems."""
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
                efficiency = judge(table, table.rows_of(fold.test), scores).efficiency
                found.setdefault(name, []).append(efficiency)
                rows[name] = rows.get(name, 0) + len(learnt) // len(args.fold)
    lines = []
    for name, parts in found.items():
        e = 100 * np.concatenate(parts)
        lines.append([name, f"{rows[name]:,}", f"{e.mean():.2f}", f"{np.percentile(e, 10):.2f}", f"{e.min():.1f}"])
    print(markdown_table(["learnt from", "rows", "mean", "P10", "worst"], lines), end="")


if __name__ == "__main__":
    main()

"""The causes of a model's distance to its ceiling: chance, measuring, or missing features.

python -m benchmarks.learning.residuals TARGET SIBLING [--data DIR] [--fold I ...] [--seeds N] [--set num_leaves=63 ...]

Out of fold, with the default of conf/model. The first table has selections by the mean score of 1, 2, ... models with
different seeds: random errors would average out. The second answer is the error of log(TFLOPS), in percent, among the
kernels near a problem's best and relative to their mean: its spread, and its correlation with the same kernels on the
same shape in SIBLING (a target with another element type). A shared error belongs to the shape, so features could
explain it; an error of one target only belongs to measuring.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.learning.ablation import NEAR
from benchmarks.learning.learning_curve import recorded
from tilewise.metrics import select
from tilewise.ops import Target
from tilewise.train import Bins, Floats, ModelSettings, Table, TrainingData, TrainSettings, fold_score, make_folds
from tilewise.train.cost_model import Baselines


def out_of_fold(table: Table, model: ModelSettings, seeds: int, only: list[int]) -> list[Floats]:
    """Return the scores for each seed, each of shape (rows,); NaN outside the requested folds."""
    bins, baselines = Bins(table.matrix, table.features.names, model.max_bin, 1), Baselines(table, model, 0)
    every = []
    for seed in range(seeds):
        data = TrainingData(table, bins, baselines, TrainSettings(model, seed=seed))
        score: Floats = np.full(len(table.problem), np.nan)
        for number, fold in enumerate(make_folds(table, 5, 0)):
            if not only or number in only:
                score[table.measured_rows_of(fold.test)] = fold_score(data, fold, model)
        every.append(score)
    return every


def residuals(table: Table, score: Floats) -> pd.Series:
    """Return the error of `score` in log(TFLOPS) near the top, indexed by problem and kernel configuration."""
    near = np.flatnonzero(np.isfinite(score) & (table.efficiency >= NEAR))
    return _by_row(table, near, (np.log(table.tflops) - score)[near])


def _by_row(table: Table, rows: Any, values: Floats) -> pd.Series:
    problem = [table.problems[p].values() for p in table.problem[rows]]
    kernel = [table.pool.kernels[k].config for k in table.kernel[rows]]
    return pd.Series(values, index=pd.MultiIndex.from_arrays([problem, kernel], names=("problem", "kernel")))


def centred(values: pd.Series) -> pd.Series:
    """Subtract each problem's mean: a common error of all kernels does not change a selection."""
    return values - values.groupby("problem").transform("mean")


def main() -> None:
    """Print both answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Target.parse)
    parser.add_argument("sibling", type=Target.parse)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--fold", type=int, nargs="*", default=[], help="test on these folds only")
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--set", nargs="*", default=[], metavar="SETTING=NUMBER", help="of ModelSettings")
    args = parser.parse_args()
    overrides = {name: json.loads(value) for name, _, value in (setting.partition("=") for setting in args.set)}
    table = recorded(args.target, args.data)
    scores = out_of_fold(table, replace(ModelSettings(), **overrides), args.seeds, args.fold)
    tested = np.isfinite(scores[0])
    judged = table.take(np.flatnonzero(tested))
    print("| models averaged | mean | P10 | worst | top 3 |\n| --- | --- | --- | --- | --- |")
    for n in range(1, args.seeds + 1):
        chosen = select(judged.problem, judged.tflops, np.mean(scores[:n], axis=0)[tested])
        e = 100 * chosen.efficiency
        top3 = 100 * chosen.top3_efficiency.mean()
        print(f"| {n} | {e.mean():.2f} | {np.percentile(e, 10):.2f} | {e.min():.1f} | {top3:.2f} |")
    score = np.mean(scores, axis=0)
    missed = residuals(table, score)
    other = recorded(args.sibling, args.data)
    measured = _by_row(other, slice(None), np.log(other.tflops))
    expected = _by_row(table, tested, score[tested])
    theirs = (measured.reindex(missed.index) - expected.reindex(missed.index)).dropna()
    mine, theirs = centred(missed.loc[theirs.index]), centred(theirs)
    shared = float(np.corrcoef(mine, theirs)[0, 1])
    problems = mine.index.get_level_values(0).nunique()
    print(f"\n{len(mine)} kernels within {1 - NEAR:.0%} of the best of {problems} problems")
    spread = f"{100 * mine.std():.2f} %, of {args.sibling.name} {100 * theirs.std():.2f} %"
    print(f"scores miss {spread}, correlated {shared:.2f}")
    print(f"the two targets differ by {100 * (mine - theirs).std():.2f} %")


if __name__ == "__main__":
    main()

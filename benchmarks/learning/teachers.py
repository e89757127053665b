"""Learning from measurements of other targets: how much they help the model of a target.

    python -m benchmarks.learning.teachers TARGET TEACHER... [--folds N] [--data data]

By number of the target's problems, ``alone`` learns from them and ``taught`` from them and the teachers' as well, with
the tuned settings of the target (`tilewise train target=TARGET teachers=[...]`). Folds of grouped cross-validation
judge: no problem of a fold's layers is learnt from, whichever target measured it. The holdout is never used. Writes
``results/teachers_TARGET.json``; `learning_curve page` puts the figures into docs/experiments.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.results import RESULTS, save
from tilewise.arch import load_arch
from tilewise.cli.compose import compose
from tilewise.data import read_measurements, split_rule
from tilewise.features import feature_table
from tilewise.markdown import table as markdown
from tilewise.ops import Target
from tilewise.train import (
    Floats,
    Fold,
    ModelSettings,
    Table,
    TrainingData,
    TrainSettings,
    build_table,
    fold_score,
    git_revision,
    make_folds,
    pool_of,
    selections_by_score,
    settings_from_config,
    with_teachers,
)

HOLDOUT = 0.18  # share of the split keys
N_SPLITS = 5
COUNTS = (0, 64, 256, 1024)  # problems of the target; all of a fold's training problems come last
SEED = 0


@dataclass(frozen=True)
class TaughtPoint:
    """Efficiencies in (0, 1] among the measured kernels; `method` is ``alone`` or ``taught``."""

    method: str
    problems: int
    judged: int
    mean_efficiency: float
    p10_efficiency: float


def joined(target: Target, teachers: Sequence[Target], data: Path) -> Table:
    """Return the training rows of a target and of its teachers, with every feature that varies."""
    features = feature_table(target.op)

    def rows(of: Target) -> Table:
        frame = read_measurements(data, of)
        return build_table(frame, of, pool_of(frame, of), load_arch(of.arch), HOLDOUT, features)

    return with_teachers(rows(target), [rows(teacher) for teacher in teachers], HOLDOUT)


def taught_curve(table: Table, model: ModelSettings, n_folds: int, threads: int = 1) -> Iterator[TaughtPoint]:
    """Yield the points of both curves, judged on the first `n_folds` of five folds."""
    data = TrainingData.prepare(table, TrainSettings(model=model, n_splits=N_SPLITS, seed=SEED, threads=threads))
    folds = make_folds(table, N_SPLITS, SEED)
    smallest = min(int(table.is_own[fold.train].sum()) for fold in folds[:n_folds])
    for count in (*(c for c in COUNTS if c < smallest), smallest):
        for method in ("alone", "taught"):
            if count or method == "taught":
                of_folds = [_efficiency(data, fold, count, method) for fold in folds[:n_folds]]
                efficiency = np.concatenate(of_folds)
                p10 = float(np.percentile(efficiency, 10))
                yield TaughtPoint(method, count, len(efficiency), float(efficiency.mean()), p10)


def _efficiency(data: TrainingData, fold: Fold, count: int, method: str) -> Floats:
    """Return the efficiency on each of the fold's test problems after learning from `count` of the target's own."""
    table = data.table
    own = np.random.default_rng(SEED).permutation(fold.train[table.is_own[fold.train]])[:count]
    others = fold.train[~table.is_own[fold.train]] if method == "taught" else fold.train[:0]
    learnt = replace(fold, train=np.sort(np.concatenate([own, others])))
    score = fold_score(data, learnt, data.settings.model)
    return selections_by_score(table, table.measured_rows_of(fold.test), score).efficiency


def teachers_table(results: Sequence[Mapping[str, Any]]) -> str:
    """Return the curves of result files as a Markdown table, mean / P10 in percent."""
    rows = []
    for result in results:
        counts = sorted({point["problems"] for point in result["points"]})
        for method in ("alone", "taught"):
            found = {
                p["problems"]: f"{100 * p['mean_efficiency']:.1f} / {100 * p['p10_efficiency']:.1f}"
                for p in result["points"]
                if p["method"] == method
            }
            by = "" if method == "alone" else ", ".join(f"`{teacher}`" for teacher in result["teachers"])
            cells = [found.get(count, "") for count in (*COUNTS, counts[-1])]
            rows.append([f"`{result['target']}`", by, *cells, str(counts[-1])])
    return markdown(["target", "taught by", *(f"{c} problems" for c in COUNTS), "all", "which are"], rows, words=2)


def main() -> None:
    """Measure the curves of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target", type=Target.parse)
    parser.add_argument("teachers", type=Target.parse, nargs="+")
    parser.add_argument("--folds", type=int, default=2, choices=range(1, N_SPLITS + 1))
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--threads", type=int, default=1)
    args = parser.parse_args()
    model = settings_from_config(compose([f"target={args.target.name}"])).model
    table = joined(args.target, args.teachers, args.data)
    points = []
    for point in taught_curve(table, model, args.folds, args.threads):
        print(asdict(point), file=sys.stderr, flush=True)
        points.append(asdict(point))
    result = {
        "target": args.target.name,
        "teachers": [teacher.name for teacher in args.teachers],
        "rule": f"{split_rule(args.target, HOLDOUT)} stays out; {args.folds} of {N_SPLITS} folds judge",
        "pool": len(table.pool),
        "revision": git_revision(Path.cwd()),
        "points": points,
    }
    save(RESULTS / f"teachers_{args.target.name}.json", result)


if __name__ == "__main__":
    main()

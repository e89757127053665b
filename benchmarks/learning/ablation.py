"""The value of each choice in a model, out of fold: the tables of docs/learnings.md.

python -m benchmarks.learning.ablation QUESTION TARGET [--problems N] [--fold I ...] [--set num_leaves=63 ...] [--json]

Questions: label, shortlist, features, fewer, quick, trees, folds, pool, data, weights, seed. Each row changes the
default of conf/model as its name says. Columns are percent of the best measured kernel: mean, P10, worst, the best of
the top 3, and the median error of predicted TFLOPS among the rows near the top. `--problems` takes evenly spread
problems, `--fold` some of the folds, `--set` other settings for all rows. The holdout is never used.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tilewise.arch import load_arch
from tilewise.data import read_measurements
from tilewise.metrics import select
from tilewise.model import COST_MODEL_LABELS, LABELS
from tilewise.ops import Target
from tilewise.train import (
    Bins,
    Floats,
    Fold,
    ModelSettings,
    Table,
    TrainingData,
    TrainSettings,
    build_table,
    fold_score,
    make_folds,
    pool_of,
    rank_features,
    select_features,
)
from tilewise.train.cost_model import Baselines

NEAR = 0.9  # rows of at least this efficiency are near the top
QUESTIONS = ("label", "shortlist", "features", "fewer", "quick", "trees", "folds", "pool", "data", "weights", "seed")
QUICK_FEATURES = 60
QUICK: list[dict[str, Any]] = [
    {"n_estimators": trees, "num_leaves": leaves, "learning_rate": rate, "shortlist": listed, **more}
    for trees, leaves, rate, listed, more in [
        (200, 186, 0.16, 24, {}),
        (200, 127, 0.16, 24, {}),
        (200, 127, 0.16, 12, {}),
        (100, 127, 0.3, 24, {}),
        (100, 186, 0.24, 12, {}),
        (100, 255, 0.3, 24, {}),
        (100, 255, 0.3, 12, {}),
        (100, 255, 0.3, 12, {"min_child_samples": 30}),
        (80, 255, 0.3, 12, {}),
        (60, 255, 0.4, 12, {}),
    ]
]
GROUPS = {
    "the shape": ("_log2", "aspect_"),
    "how much of a tile is used": ("efficiency", "k_is_whole"),
    "waves": ("wave", "programs", "resident"),
    "traffic": ("traffic", "reuse", "l2", "bytes"),
    "alignment": ("alignment",),
}


@dataclass(frozen=True)
class Row:
    """One setting: the model's settings, the share of training problems and of the pool, and the features left out."""

    name: str
    model: ModelSettings = field(default_factory=ModelSettings)
    data: float = 1.0
    pool: float = 1.0
    without: tuple[str, ...] = ()
    folds: int | None = None
    seed: int = 0


def rows_of(question: str, table: Table, default: ModelSettings) -> Iterator[Row]:
    """Yield the rows of a question."""

    def models(changes: list[dict[str, Any]]) -> Iterator[Row]:
        for change in changes:
            name = ", ".join(f"{k}={v}" for k, v in change.items())
            yield Row(name or "the default", replace(default, **change))

    if question == "label":
        yield from models([{"label": label} for label in LABELS])
    elif question == "shortlist":
        yield from models([{"shortlist": n} for n in (8, 16, 24, 32, 48, 0)])
    elif question == "trees":
        yield from models([{"n_estimators": n} for n in (50, 100, 200, 400, 800)])
    elif question == "weights":
        yield from models(
            [
                {},
                {"weight_floor": 0.0},
                {"weight_floor": 0.3},
                {"weight_floor": 0.7},
                {"top_weight": 0.0},
                {"top_weight": 2.0},
                {"top_weight": 8.0},
                {"noise_floor": 0.02},
                {"hard_weight": 3.0},
            ]
        )
    elif question == "data":
        yield from (Row(f"{share:.0%} of the problems", default, data=share) for share in (0.25, 0.5, 1.0))
    elif question == "pool":
        yield from (Row(f"{share:.0%} of the pool", default, pool=share) for share in (0.25, 0.5, 1.0))
    elif question == "folds":
        yield from (Row(f"{folds} folds", default, folds=folds) for folds in (3, 5, 10))
    elif question == "seed":
        yield from (Row(f"seed {seed}", default, seed=seed) for seed in range(3))
    elif question == "fewer":
        names = rank_features(table, TrainSettings(default, threads=0))
        yield from (
            Row(f"the {n} features of most gain", default, without=names[n:]) for n in (len(names), 80, 60, 40, 25)
        )
    elif question == "quick":
        names = rank_features(table, TrainSettings(default, threads=0))
        yield from (replace(row, without=names[QUICK_FEATURES:]) for row in models(QUICK))
    else:
        yield Row("all features", default)
        for role in ("problem", "kernel", "interaction"):
            yield Row(f"without role {role}", default, without=table.features.of_role(role).names)
        for name, parts in GROUPS.items():
            named = tuple(n for n in table.features.names if any(part in n for part in parts))
            if name == "the shape":
                named = tuple(n for n in table.features.of_role("problem").names if n in named)
            yield Row(f"without {name} ({len(named)})", default, without=named)


def figures(
    table: Table, row: Row, baselines: Baselines, n_folds: int, only: list[int], threads: int
) -> dict[str, float]:
    """Return the out-of-fold figures of one row, in percent; `only` lists the folds to test on, empty for all."""
    settings = TrainSettings(row.model, seed=row.seed, threads=threads)
    table = table.with_features([name for name in table.features.names if name not in row.without])
    table = select_features(table, settings)
    bins = Bins(table.matrix, table.features.names, row.model.max_bin, threads)
    data = TrainingData(table, bins, baselines, settings)
    score: Floats = np.full(len(table.problem), np.nan)
    start = time.perf_counter()
    for i, fold in enumerate(make_folds(table, row.folds or n_folds, 0)):
        if only and i not in only:
            continue
        if row.data < 1:
            chosen = np.random.default_rng(0).permutation(len(fold.train))[: round(row.data * len(fold.train))]
            fold = Fold(np.sort(fold.train[chosen]), fold.test)
        score[table.measured_rows_of(fold.test)] = fold_score(data, fold, row.model)
    seconds = time.perf_counter() - start
    table, score = table.take(np.flatnonzero(np.isfinite(score))), score[np.isfinite(score)]
    if row.pool < 1:
        few = np.random.default_rng(0).permutation(len(table.pool))[: round(row.pool * len(table.pool))]
        candidate = np.isin(table.kernel, few)
        some = np.bincount(table.problem[candidate], minlength=len(table.problems)) > 0
        score = np.where(candidate | ~some[table.problem], score, -np.inf)
    chosen_rows = select(table.problem, table.tflops, score)
    e, top3 = chosen_rows.efficiency, chosen_rows.top3_efficiency
    shares = {
        "mean": e.mean(), "P10": np.percentile(e, 10), "worst": e.min(),
        "top 3": top3.mean(), "top 3 P10": np.percentile(top3, 10),
    }  # fmt: skip
    if row.model.label != "relative" and row.pool == 1:  # whose scores are predicted TFLOPS
        predicted = np.expm1(score) if row.model.label == "log1p" else np.exp(score)
        shares["TFLOPS off"] = np.median(np.abs(predicted / table.tflops - 1)[table.efficiency >= NEAR])
    return {name: 100 * float(share) for name, share in shares.items()} | {"s": seconds}


def main() -> None:
    """Print a table row by row."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=QUESTIONS)
    parser.add_argument("target", type=Target.parse)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--problems", type=int)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--fold", type=int, nargs="*", default=[], help="test on these folds only")
    parser.add_argument("--set", nargs="*", default=[], metavar="SETTING=NUMBER", help="of ModelSettings")
    parser.add_argument("--threads", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="lines of JSON instead of a table")
    args = parser.parse_args()
    frame = read_measurements(args.data, args.target)
    pool, arch = pool_of(frame, args.target), load_arch(args.target.arch)
    table = build_table(frame, args.target, pool, arch, TrainSettings().holdout_fraction)
    if args.problems and args.problems < len(table.problems):
        even = np.linspace(0, len(table.problems) - 1, args.problems).round().astype(np.int64)
        table = table.take(table.rows_of(even))
    print(f"{args.target.name}: {len(table.problems)} problems, pool of {len(pool)}", file=sys.stderr)
    overrides = {name: json.loads(value) for name, _, value in (setting.partition("=") for setting in args.set)}
    titles: tuple[str, ...] = ()
    baselines: dict[tuple[Any, ...], Baselines] = {}  # shared by rows with the same cost model
    for row in rows_of(args.question, table, ModelSettings(**overrides)):
        key = (row.model.label in COST_MODEL_LABELS, row.model.label_floor, row.model.shortlist, row.seed)
        begun = baselines.setdefault(key, Baselines(table, row.model, row.seed))
        found = figures(table, row, begun, args.folds, args.fold, args.threads)
        if args.json:
            described = {"name": row.name, "model": asdict(row.model), **found}
            print(json.dumps({"target": args.target.name, "problems": len(table.problems), **described}), flush=True)
            continue
        if not titles:
            titles = ("mean", "P10", "worst", "top 3", "top 3 P10", "TFLOPS off", "s")
            print(f"| {args.question} | {' | '.join(titles)} |\n|{' --- |' * (1 + len(titles))}")
        cells = (f"{found[t]:.{0 if t == 's' else 1 if t == 'worst' else 2}f}" if t in found else "" for t in titles)
        print(f"| {row.name} | {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()

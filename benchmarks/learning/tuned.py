"""Tuned settings on folds that tuning did not use: ``python -m benchmarks.learning.tuned TARGET [--seeds 1 2]``.

The default settings and those of ``conf/tuned/TARGET.yaml`` (or of ``--like TARGET``) are trained with other seeds and
judged on the folds that a search with ``tune.n_folds`` of ``n_splits`` never tests on. The holdout is not used.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import cast

import numpy as np

from tilewise.arch import load_arch
from tilewise.cli.compose import tuned_values
from tilewise.data import read_measurements
from tilewise.markdown import table as markdown
from tilewise.ops import Target
from tilewise.train import (
    Floats,
    ModelSettings,
    Table,
    TrainingData,
    TrainSettings,
    TuneSettings,
    build_table,
    fold_score,
    make_folds,
    pool_of,
    selections_by_score,
    with_params,
)

HOLDOUT = 0.18


def held_back(
    table: Table, base: ModelSettings, models: dict[str, ModelSettings], seeds: list[int], threads: int, n_folds: int
) -> dict[str, list[Floats]]:
    """Return efficiencies by model: one array per seed, over the problems of the folds that no search tests on."""
    settings = TrainSettings(base, threads=threads)
    folds = make_folds(table, settings.n_splits, settings.seed)[n_folds:]
    data = TrainingData.prepare(table, settings)
    tested = [(fold, table.measured_rows_of(fold.test)) for fold in folds]
    seen: dict[str, list[Floats]] = {name: [] for name in models}
    for seed in seeds:
        seeded = replace(data, settings=replace(settings, seed=seed))
        for name, model in models.items():
            parts = [
                selections_by_score(table, rows, fold_score(seeded, fold, model)).efficiency for fold, rows in tested
            ]
            seen[name].append(np.concatenate(parts))
    return seen


def main(argv: list[str] | None = None) -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("target", type=Target.parse)
    parser.add_argument("--like", help="the target whose tuned settings are used; default: the same")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--trees", type=int, default=ModelSettings().n_estimators)
    parser.add_argument("--folds", type=int, default=TuneSettings().n_folds, help="folds that the search tested on")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--data", type=Path, default=Path("data"))
    args = parser.parse_args(argv)
    target: Target = args.target
    frame = read_measurements(args.data, target)
    table = build_table(frame, target, pool_of(frame, target), load_arch(target.arch), HOLDOUT)
    base = ModelSettings(n_estimators=args.trees)
    tuned = cast("dict[str, float | int]", tuned_values(args.like or target.name))
    models = {"default": base, "tuned": with_params(base, tuned)}
    seen = held_back(table, base, models, args.seeds, args.threads, args.folds)
    rows = [
        (
            name,
            str(seed),
            str(len(e)),
            f"{100 * e.mean():.2f}",
            f"{100 * np.percentile(e, 10):.2f}",
            f"{100 * e.min():.1f}",
        )
        for name, of_seeds in seen.items()
        for seed, e in zip(args.seeds, of_seeds, strict=True)
    ]
    print(markdown(("settings", "seed", "problems", "mean %", "P10 %", "worst %"), rows))


if __name__ == "__main__":
    main()

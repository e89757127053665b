"""Time of tuning against a plain search.

python -m benchmarks.learning.tuning [--json] [--trials 50] [--rows 48845] ...

Both search the same space from the same seed with the same folds and cost models, in memory, on the committed forward
table or on as many of its problems as give ``--rows`` rows. The plain loop builds a ``lightgbm.Dataset`` for every fold
of every trial, grows all trees, predicts, and uses every fold. The settings found by each search, and the initial ones,
are then cross-validated with three other seeds. CPU time is compared, so that other processes count little; wall-clock
time is reported beside it. Writes ``results/tuning.json``.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna

from benchmarks.results import RESULTS, save
from tilewise.arch import load_arch
from tilewise.data import read_measurements
from tilewise.metrics import objective
from tilewise.ops import Target
from tilewise.train import (
    Bins,
    Fit,
    Floats,
    Fold,
    ModelSettings,
    Table,
    TrainingData,
    TrainSettings,
    TuneSettings,
    build_table,
    cross_validate,
    make_folds,
    make_labels,
    pool_of,
    selections_by_score,
    with_params,
)
from tilewise.train.cost_model import Baselines
from tilewise.train.tuning import NumberedSampler, suggest, trial_model, tune

TARGET = Target.parse("grouped_conv_forward_bf16_sm90")
HOLDOUT = 0.18
SEEDS = 3  # of the final cross-validations: selections among near-best kernels vary with the seed


def part(table: Table, rows: int) -> Table:
    """Return whole problems, drawn at random, with about `rows` rows."""
    order = np.random.default_rng(0).permutation(len(table.problems))
    count = np.bincount(table.problem, minlength=len(table.problems))[order].cumsum()
    return table.take(table.rows_of(order[: np.searchsorted(count, rows) + 1]))


def plain(table: Table, baselines: Baselines, folds: tuple[Fold, ...], settings: TrainSettings) -> ModelSettings:
    """Return the settings found by a search without any of the shortcuts."""
    space = settings.tune.space

    def run(trial: optuna.Trial) -> float:
        params: dict[str, float | int] = {name: suggest(trial, name, *space[name]) for name in space}
        model = trial_model(settings, params)
        return float(np.mean([value_of(fold, model) for fold in folds]))

    def value_of(fold: Fold, model: ModelSettings) -> float:
        train, test = table.rows_of(fold.train), table.measured_rows_of(fold.test)
        baseline = baselines.of(fold.train).scores
        bins = Bins(table.matrix, table.features.names, model.max_bin, settings.threads)
        labels = make_labels(table, model, baseline)
        *_, last = bins.grow(model, labels, train, test, Fit(settings.seed, settings.threads), every=10**9)
        raw: Floats = np.asarray(last.booster.predict(table.matrix[test], raw_score=True, num_threads=settings.threads))
        return objective(selections_by_score(table, test, baseline[test] + raw).efficiency)

    study = optuna.create_study(direction="maximize", sampler=NumberedSampler(settings.tune.seed))
    study.enqueue_trial({name: getattr(settings.model, name) for name in space})
    study.optimize(run, n_trials=settings.tune.n_trials)
    return with_params(settings.model, study.best_params)


def timed(action: Callable[[], ModelSettings]) -> tuple[ModelSettings, dict[str, float]]:
    """Return the result of `action`, and its CPU and wall-clock seconds."""
    processor, clock = time.process_time(), time.perf_counter()
    found = action()
    return found, {"cpu_s": time.process_time() - processor, "wall_s": time.perf_counter() - clock}


def run(table: Table, settings: TrainSettings) -> dict[str, Any]:
    """Run both searches, and judge the settings that they find."""
    folds = make_folds(table, settings.n_splits, settings.seed)
    baselines = Baselines(table, settings.model, settings.seed)
    for fold in folds:
        baselines.of(fold.train)  # cached before, so that neither search is charged
    trials: list[str] = []

    def ours() -> ModelSettings:
        bins = Bins(table.matrix, table.features.names, settings.model.max_bin, settings.threads)
        data = TrainingData(table, bins, baselines, settings)
        return tune(data, folds, lambda trial: trials.append(trial.state))[0].model

    found = {"tilewise": timed(ours), "plain": timed(lambda: plain(table, baselines, folds, settings))}
    data = TrainingData.prepare(table, settings)
    result: dict[str, Any] = {
        "target": table.target.name,
        "rows": len(table.problem),
        "features": table.matrix.shape[1],
        "problems": len(table.problems),
        "trials": settings.tune.n_trials,
        "folds": settings.n_splits,
        "trees": settings.tune.n_estimators,
        "label": settings.model.label,
        "threads": settings.threads,
        "pruned": trials.count("pruned"),
    }
    judged = {"given": (settings.model, {}), **found}
    for name, (model, seconds) in judged.items():
        short = replace(model, n_estimators=settings.tune.n_estimators)
        seen = [
            cross_validate(
                replace(data, baselines=baselines, settings=replace(settings, seed=settings.seed + 1 + i)), folds, short
            )
            for i in range(SEEDS)
        ]
        efficiency = np.array([one.out_of_fold.efficiency for one in seen])
        result[name] = seconds | {
            "mean": float(efficiency.mean()),
            "p10": float(np.percentile(efficiency, 10, axis=1).mean()),
            "params": {n: getattr(model, n) for n in settings.tune.space},
        }
    return result | {"ratio": result["tilewise"]["cpu_s"] / result["plain"]["cpu_s"]}


def text(result: dict[str, Any]) -> str:
    """Return the figures as a table and a sentence."""
    rows = [
        f"| {name} | {_seconds(r, 'cpu_s')} | {_seconds(r, 'wall_s')} | {100 * r['mean']:.2f} | {100 * r['p10']:.2f} |"
        for name, r in ((name, result[name]) for name in ("plain", "tilewise", "given"))
    ]
    about = (
        f"`{result['target']}`, label `{result['label']}`: {result['trials']} trials x {result['folds']} folds x "
        f"{result['trees']} trees on {result['rows']:,} rows x {result['features']} features, {result['threads']} "
        f"threads; {result['pruned']} trials pruned. Time ratio {result['ratio']:.2f}."
    )
    head = ["| search | processor s | wall s | mean % | P10 % |", "| --- | ---: | ---: | ---: | ---: |"]
    return "\n".join([*head, *rows, "", about])


def _seconds(figures: dict[str, Any], name: str) -> str:
    return f"{figures[name]:.0f}" if name in figures else ""


def main(argv: list[str] | None = None) -> None:
    """Run the benchmark and write ``results/tuning.json``."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--trials", type=int, default=50)
    parser.add_argument("--folds", type=int, default=5)
    parser.add_argument("--rows", type=int, default=48_845)
    parser.add_argument("--trees", type=int, default=TuneSettings().n_estimators)
    parser.add_argument("--label", default=ModelSettings().label)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--data", type=Path, default=Path("data"))
    parser.add_argument("--out", type=Path, default=RESULTS / "tuning.json")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    args = parser.parse_args(argv)
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    frame = read_measurements(args.data, TARGET)
    table = part(build_table(frame, TARGET, pool_of(frame, TARGET), load_arch(TARGET.arch), HOLDOUT), args.rows)
    budget = TuneSettings(n_trials=args.trials, n_folds=args.folds, n_estimators=args.trees, seed=1)
    settings = TrainSettings(ModelSettings(label=args.label), budget, n_splits=args.folds, threads=args.threads)
    result = run(table, settings)
    save(args.out, result)
    print(json.dumps(result) if args.json else text(result), file=sys.stdout)


if __name__ == "__main__":
    main()

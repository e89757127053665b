"""One training, from table to the parts of a model's folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tilewise.arch import HardwareProfile
from tilewise.data.digest import table_hash
from tilewise.data.splits import split_rule
from tilewise.kernels.pool import Pool
from tilewise.model.artefact import ArtefactParts
from tilewise.ops import Problem, Target
from tilewise.train.baseline import Baselines
from tilewise.train.boosting import SCALE_SETTINGS, Bins, model_text
from tilewise.train.cross_validation import Fold, cross_validate, make_folds, scale_bins
from tilewise.train.dataset import Floats, Table, build_table
from tilewise.train.gain import with_most_gain
from tilewise.train.labels import Labels, labels
from tilewise.train.learning_curve import curve_by_problems, curve_by_trees
from tilewise.train.provenance import git_revision, library_versions
from tilewise.train.result import FoldRecord, TrainingResult, TrialRecord
from tilewise.train.settings import ModelSettings, TrainSettings
from tilewise.train.trust import calibrate_trust
from tilewise.train.tune import tune
from tilewise.train.warm import Base, append_trees

SELFTEST_PROBLEMS = 5


def train(
    frame: pd.DataFrame,
    target: Target,
    pool: Pool,
    arch: HardwareProfile,
    settings: TrainSettings,
    *,
    on_trial: Callable[[TrialRecord], None] | None = None,
    on_fold: Callable[[FoldRecord], None] | None = None,
    base: Base | None = None,
) -> TrainingResult:
    """Tune, cross-validate and fit; deterministic for equal arguments, the number of threads among them.

    Args:
        frame: a measurement table; holdout problems, repeats, failed kernels and other targets in it are not learnt.
        target: what to train for.
        pool: what the model may choose from, see :func:`tilewise.train.pool.pool_of`.
        arch: the hardware of the target.
        settings: everything else.
        on_trial: told of each tuning trial as it is done.
        on_fold: told of each fold as it is done.
        base: a model to continue: `settings.model.warm_estimators` trees are added to it, and its pool and hardware
            profile take the place of those given. Out-of-fold figures are of folds that the base may have seen.

    Raises:
        ConfigError: `base` is of another target or label.
        DataError: there is too little to learn from.
        KernelError: two kernels of the pool cannot be told apart.
    """
    if base:
        base.check(target, settings)
        settings, pool, arch = base.settings(settings), base.model.pool, base.model.arch
    table = build_table(frame, target, pool, arch, settings.holdout_fraction, base.model.features if base else None)
    table = table if base else with_most_gain(table, settings)
    folds = make_folds(table, settings.n_splits, settings.seed)
    bins = Bins(table.matrix, table.features.names, settings.model.max_bin, settings.threads)
    baselines = Baselines(table, settings.model, settings.seed, base)
    tuning = tune(table, bins, baselines, folds, settings, on_trial)
    model = tuning.model
    validated = cross_validate(table, bins, baselines, folds, model, settings, on_fold)
    baseline = baselines.of_all()
    learnt, rows = labels(table, model, baseline.scores), baselines.rows_to_learn(np.arange(len(table.problems)))
    booster = bins.fit(model, learnt, settings.seed, settings.threads, rows)
    importances = _importances(table, booster)
    data_hash = table_hash(frame)
    rule = split_rule(settings.holdout_fraction, settings.n_splits)
    if base:
        rule += "; the continued model may have seen them"
    return TrainingResult(
        target=target,
        settings=settings,
        params=dataclasses.asdict(model) | {"extra_labels": ",".join(model.extra_labels)},
        parts=ArtefactParts(
            target=target,
            pool=pool,
            arch=arch,
            features=table.features,
            label=model.label,
            booster_text=append_trees(base.parts.booster_text, model_text(booster)) if base else model_text(booster),
            estimate=baseline.estimate,
            scale_text=_scale_text(table, settings, base) if model.label == "relative" else None,
            cv_metrics={
                **validated.metrics,
                "folds": [dict(f.metrics) for f in validated.folds],
                "split_rule": rule,
            },
            feature_importances=importances,
            manifest=_manifest(table, settings, model, data_hash, rule)
            | ({"warm_start": base.lineage(model.n_estimators, data_hash)} if base else {}),
            selftest_problems=_selftest_problems(table),
            extra_boosters=base.parts.extra_boosters if base else _extra_boosters(table, bins, model, settings),
            trust=None
            if base
            else calibrate_trust(table, folds, validated.out_of_fold, _log_rates(table, folds, baselines)),
            shortlist=model.shortlist if baseline.estimate else 0,
        ),
        folds=validated.folds,
        cv_metrics=validated.metrics,
        tuning=tuning,
        feature_importances=importances,
        out_of_fold=validated.out_of_fold,
        by_trees=curve_by_trees(validated.grown),
        by_problems=()
        if base
        else curve_by_problems(table, bins, baselines, folds[0], model, settings, validated.grown),
        data_hash=data_hash,
        n_problems=len(table.problems),
        n_rows=len(table.problem),
        n_holdout_problems=table.n_holdout_problems,
        split_rule=rule,
    )


def _log_rates(table: Table, folds: Sequence[Fold], baselines: Baselines) -> Floats | None:
    """(rows,) log(TFLOPS) by the launch estimate of the fold that tests a row; None where labels need no estimate."""
    rates = np.empty(len(table.problem))
    for fold in folds:
        rows, known = table.rows_of(fold.test), baselines.of(fold.train).rates
        if known is None:
            return None
        rates[rows] = known[rows]
    return rates


def _importances(table: Table, booster: Any) -> dict[str, float]:
    gain = booster.feature_importance("gain")
    by_gain = sorted(zip(table.features.names, gain.tolist(), strict=True), key=lambda pair: (-pair[1], pair[0]))
    return dict(by_gain)


def _scale_text(table: Table, settings: TrainSettings, base: Base | None) -> str | None:
    if base:
        return base.parts.scale_text
    wanted = Labels(np.log(table.best), None)
    return model_text(scale_bins(table, settings.threads).fit(SCALE_SETTINGS, wanted, settings.seed, settings.threads))


def _extra_boosters(table: Table, bins: Bins, model: ModelSettings, settings: TrainSettings) -> dict[str, str]:
    measured = {"latency": table.latency_ms, "bandwidth": table.bandwidth_gb_s}
    return {
        name: model_text(bins.fit(model, Labels(np.log(measured[name]), None), settings.seed, settings.threads))
        for name in model.extra_labels
    }


def _selftest_problems(table: Table) -> tuple[Problem, ...]:
    """A few problems, spread over the table."""
    chosen = np.unique(np.linspace(0, len(table.problems) - 1, SELFTEST_PROBLEMS).round().astype(int))
    return tuple(table.problems[i] for i in chosen)


def _manifest(table: Table, settings: TrainSettings, model: ModelSettings, data_hash: str, rule: str) -> dict[str, Any]:
    return {
        "target": table.target.name,
        "data_hash": data_hash,
        "git_revision": git_revision(Path.cwd()),
        "parameters": dataclasses.asdict(model),
        "tuned": [n for n in settings.tune.space if getattr(model, n) != getattr(settings.model, n)],
        "n_splits": settings.n_splits,
        "seed": settings.seed,
        "holdout_fraction": settings.holdout_fraction,
        "split_rule": rule,
        "n_problems": len(table.problems),
        "n_rows": len(table.problem),
        "n_holdout_problems": table.n_holdout_problems,
        "pool_size": len(table.pool),
        "libraries": library_versions(),
        "warm_start": [],
    }

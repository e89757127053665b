"""Training, from a measurement table to the parts of a model's folder: from scratch, or as a continuation."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
import pandas as pd

from tilewise.arch import HardwareProfile, load_arch
from tilewise.cluster import LOCAL, Executor
from tilewise.data import Measurements, split_rule, table_hash
from tilewise.errors import ConfigError
from tilewise.features import feature_table
from tilewise.kernels import Pool
from tilewise.model import COST_MODEL_LABELS, SCALED_LABELS, ArtefactParts, Calibration
from tilewise.ops import Problem, Target
from tilewise.train._boosting import model_text, scale_settings
from tilewise.train._cross_validation import (
    CrossValidation,
    Fold,
    TrainingData,
    cross_validate,
    make_folds,
    scale_bins,
    tested_problems,
)
from tilewise.train._dataset import Floats, Table, build_table, with_teachers
from tilewise.train._feature_selection import select_features
from tilewise.train._fit_confidence import fit_confidence
from tilewise.train._learning_curve import curve_by_problems, curve_by_trees
from tilewise.train._provenance import git_revision, library_versions
from tilewise.train._settings import ModelSettings, TrainSettings
from tilewise.train._training_labels import Labels, make_labels
from tilewise.train._training_pool import pool_of
from tilewise.train._training_result import CurvePoint, FoldResult, TrainingResult, TrialResult, TuningResult
from tilewise.train._warm_start import BaseModel, append_trees, raw_scores
from tilewise.train.cost_model import Baselines
from tilewise.train.hosts import Learning, fit_model
from tilewise.train.tuning import tune

SELFTEST_PROBLEMS = 5


@dataclass(frozen=True)
class Callbacks:
    """Hooks of the caller into a running training.

    Attributes:
        on_trial: called with each tuning trial when it is over.
        on_fold: called with each fold of the cross-validation when it is done.
        executor: runs trials, folds and the learning curve; the results do not depend on it.
    """

    on_trial: Callable[[TrialResult], None] | None = None
    on_fold: Callable[[FoldResult], None] | None = None
    executor: Executor = LOCAL


def train(
    rows: pd.DataFrame | Measurements,
    target: Target,
    pool: Pool,
    arch: HardwareProfile,
    settings: TrainSettings,
    callbacks: Callbacks | None = None,
) -> TrainingResult:
    """Tune, cross-validate and fit a model; deterministic for equal arguments, including the number of threads.

    Args:
        rows: a measurement table, in memory if there are teachers. Its holdout problems, failed kernels and targets
            that are neither `target` nor a teacher are not used.
        target: target to train for.
        pool: kernels that the model may choose from, see :func:`tilewise.train.pool_of`.
        arch: the hardware of the target.
        settings: all other settings.
        callbacks: report progress.

    Raises:
        DataError: there are too few rows to train on.
        KernelError: the features do not distinguish two kernels of the pool.
    """
    table = _table(rows, target, pool, arch, settings)
    baselines = Baselines(table, settings.model, settings.seed)  # no feature changes them, so they are calibrated once
    table = select_features(table, settings, baselines)
    rule = split_rule(target, settings.holdout_fraction, settings.n_splits)
    if table.judges_calls:
        rule += ", judged where PyTorch's own calls were measured"
    callbacks = callbacks or Callbacks()
    fit = _tune_and_fit(TrainingData.prepare(table, settings, baselines), callbacks, rule, _hash(rows))
    model = fit.model
    parts = fit.parts(
        booster_text=model_text(fit.booster),
        scale_text=fit.scale_text(),
        extra_boosters=_extra_boosters(fit.data, model),
        calibration=fit_confidence(table, fit.folds, fit.validated.out_of_fold, _log_rates(fit.data, fit.folds)),
    )
    return fit.result(parts, curve_by_problems(fit.data, fit.folds[0], model, fit.validated.grown, callbacks.executor))


def continue_training(
    rows: pd.DataFrame | Measurements,
    target: Target,
    base: BaseModel,
    settings: TrainSettings,
    callbacks: Callbacks | None = None,
) -> TrainingResult:
    """Add ``settings.model.warm_estimators`` trees, learnt from `rows`, to a model; its pool and hardware stay.

    Of the base's trees for latency and bandwidth, those in ``settings.model.extra_labels`` are continued as well, and
    others are dropped, since they would not know `rows`. Nothing is tuned, and the confidence is not calibrated: the
    base model may have seen the test problems of the folds.

    Args:
        rows: a measurement table, see :func:`train`.
        target: target of the base model.
        base: the model to continue.
        settings: all other settings.
        callbacks: report progress.

    Raises:
        ConfigError: the base model has another target or label, lacks trees of an extra label, or was trained on
            holdout problems.
        DataError: there are too few rows to train on.
    """
    base.check(target, settings)
    extra_labels = settings.model.extra_labels
    settings, known = base.settings(settings), base.model
    table = build_table(rows, target, known.pool, known.arch, settings.holdout_fraction, known.features)
    rule = split_rule(target, settings.holdout_fraction, settings.n_splits) + "; the continued model may have seen them"
    data = TrainingData.prepare(table, settings, Baselines(table, settings.model, settings.seed, base))
    fit = _tune_and_fit(data, callbacks or Callbacks(), rule, _hash(rows))
    parts = fit.parts(
        booster_text=append_trees(base.parts.booster_text, model_text(fit.booster)),
        scale_text=base.parts.scale_text,
        extra_boosters=_continued_extras(fit.data, fit.model, base, extra_labels),
        calibration=None,
        warm_start=base.lineage(fit.model.n_estimators, fit.data_hash),
    )
    return fit.result(parts, by_problems=())


@dataclass(frozen=True)
class _Fit:
    """A tuned, cross-validated and fitted booster, and everything that it came from."""

    data: TrainingData
    folds: tuple[Fold, ...]
    tuning: TuningResult
    validated: CrossValidation
    booster: lgb.Booster
    split_rule: str
    data_hash: str

    @property
    def model(self) -> ModelSettings:
        """Settings of the booster, tuned ones included."""
        return self.tuning.model

    @property
    def importances(self) -> dict[str, float]:
        """Total gain of each feature, largest first, then by name."""
        gain = self.booster.feature_importance("gain")
        pairs = zip(self.data.table.features.names, gain.tolist(), strict=True)
        return dict(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))

    def scale_text(self) -> str | None:
        """Return the text of the trees that predict a problem's scale; None for labels without one."""
        if self.model.label not in SCALED_LABELS:
            return None
        bins = scale_bins(self.data.table, self.data.settings.threads)
        labels, rows = Labels(self.validated.log_scale, None), tested_problems(self.folds)
        return model_text(bins.fit(scale_settings(self.model.label, len(rows)), labels, self.data.fit, rows))

    def parts(
        self,
        *,
        booster_text: str,
        scale_text: str | None,
        extra_boosters: Mapping[str, str],
        calibration: Calibration | None,
        warm_start: Sequence[Mapping[str, Any]] = (),
    ) -> ArtefactParts:
        """Return the parts of the model's folder."""
        table, metrics = self.data.table, self.validated
        cost_model = self.data.baselines.of_all().cost_model
        return ArtefactParts(
            target=table.target,
            pool=table.pool,
            arch=table.arch,
            features=table.features,
            label=self.model.label,
            booster_text=booster_text,
            cost_model=cost_model,
            scale_text=scale_text,
            cv_metrics={
                **metrics.metrics,
                "folds": [dict(f.metrics) for f in metrics.folds],
                "split_rule": self.split_rule,
            },
            feature_importances=self.importances,
            manifest=self._manifest() | {"warm_start": list(warm_start)},
            selftest_problems=_selftest_problems(table),
            extra_boosters=extra_boosters,
            calibration=calibration,
            shortlist=self.model.shortlist if cost_model else 0,
        )

    def result(self, parts: ArtefactParts, by_problems: tuple[CurvePoint, ...]) -> TrainingResult:
        """Return the result with these parts and learning curve."""
        table, model = self.data.table, self.model
        return TrainingResult(
            target=table.target,
            settings=self.data.settings,
            params=dataclasses.asdict(model) | {"extra_labels": ",".join(model.extra_labels)},
            parts=parts,
            folds=self.validated.folds,
            cv_metrics=self.validated.metrics,
            tuning=self.tuning,
            feature_importances=self.importances,
            out_of_fold=self.validated.out_of_fold,
            by_trees=curve_by_trees(self.validated.grown),
            by_problems=by_problems,
            data_hash=self.data_hash,
            n_problems=int(table.is_own.sum()),
            n_rows=int(table.is_own[table.problem].sum()),
            n_holdout_problems=table.split.n_holdout_problems,
            split_rule=self.split_rule,
        )

    def _manifest(self) -> dict[str, Any]:
        table, settings, model = self.data.table, self.data.settings, self.model
        return {
            "target": table.target.name,
            "data_hash": self.data_hash,
            "git_revision": git_revision(Path.cwd()),
            "parameters": dataclasses.asdict(model),
            "tuned": [n for n in settings.tune.space if getattr(model, n) != getattr(settings.model, n)],
            "n_splits": settings.n_splits,
            "seed": settings.seed,
            "holdout_fraction": settings.holdout_fraction,
            "split_rule": self.split_rule,
            "n_problems": int(table.is_own.sum()),
            "n_rows": int(table.is_own[table.problem].sum()),
            "teachers": [teacher.name for teacher in settings.teachers],
            **dataclasses.asdict(table.split),
            "pool_size": len(table.pool),
            "libraries": library_versions(),
        }


def _hash(rows: pd.DataFrame | Measurements) -> str:
    return table_hash(rows) if isinstance(rows, pd.DataFrame) else rows.content_hash


def _table(
    rows: pd.DataFrame | Measurements, target: Target, pool: Pool, arch: HardwareProfile, settings: TrainSettings
) -> Table:
    """Return the training rows of the target, and of its teachers.

    Raises:
        ConfigError: a teacher is the target itself, or of another op, or of an arch that its cost model does not know.
        DataError: a target has no row to learn from.
    """
    fraction = settings.holdout_fraction
    if not settings.teachers:
        return build_table(rows, target, pool, arch, fraction)
    strangers = [t.name for t in settings.teachers if t.op != target.op or t == target]
    if strangers:
        raise ConfigError(f"teachers of {target.name} must be other targets of {target.op}, got {', '.join(strangers)}")
    others = [t.name for t in settings.teachers if t.arch != target.arch]
    if others and settings.model.label in COST_MODEL_LABELS:
        raise ConfigError(
            f"{', '.join(others)}: a model.label of {settings.model.label} starts from a cost model of one arch; "
            f"leave out teachers that are not of {target.arch}, or set model.label=relative"
        )
    every = feature_table(target.op)
    teachers = [build_table(rows, t, pool_of(rows, t), load_arch(t.arch), fraction, every) for t in settings.teachers]
    return with_teachers(build_table(rows, target, pool, arch, fraction, every), teachers, fraction)


def _tune_and_fit(data: TrainingData, callbacks: Callbacks, rule: str, data_hash: str) -> _Fit:
    """Tune, cross-validate the chosen settings, and fit them on all problems."""
    table, settings = data.table, data.settings
    folds = make_folds(table, settings.n_splits, settings.seed)
    data.baselines.expect([*(fold.train for fold in folds), np.arange(len(table.problems))])
    tuning, grown = tune(data, folds, callbacks.on_trial, callbacks.executor)
    validated = cross_validate(data, folds, tuning.model, callbacks.on_fold, callbacks.executor, grown)
    labels = make_labels(table, tuning.model, data.baselines.of_all().scores)
    rows = data.baselines.training_rows(np.arange(len(table.problems)))
    booster = fit_model(callbacks.executor, data.bins, Learning(table, tuning.model, data.fit, labels, rows))
    return _Fit(data, folds, tuning, validated, booster, rule, data_hash)


def _log_rates(data: TrainingData, folds: Sequence[Fold]) -> Floats | None:
    """Return log(TFLOPS) of each row by the cost model of the fold that tests it, of shape (rows,).

    None where the label needs no cost model.
    """
    rates = np.empty(len(data.table.problem))
    for fold in folds:
        rows, of_fold = data.table.measured_rows_of(fold.test), data.baselines.of(fold.train).rates
        if of_fold is None:
            return None
        rates[rows] = of_fold[rows]
    return rates


def _extra_boosters(data: TrainingData, model: ModelSettings) -> dict[str, str]:
    measured = _log_extras(data)
    return {
        name: model_text(data.bins.fit(model, Labels(measured[name], None), data.fit)) for name in model.extra_labels
    }


def _continued_extras(
    data: TrainingData, model: ModelSettings, base: BaseModel, labels: Sequence[str]
) -> dict[str, str]:
    """Return the base model's trees of these labels, with trees added that learn their errors; others are dropped."""
    measured, texts = _log_extras(data), {}
    for name in labels:
        text = base.parts.extra_boosters[name]
        known = raw_scores(text, data.table)
        added = data.bins.fit(model, Labels(measured[name] - known, None), data.fit)
        texts[name] = append_trees(text, model_text(added))
    return texts


def _log_extras(data: TrainingData) -> dict[str, Floats]:
    return {"latency": np.log(data.table.latency_ms), "bandwidth": np.log(data.table.bandwidth_gb_s)}


def _selftest_problems(table: Table) -> tuple[Problem, ...]:
    """Return a few problems, spread evenly over the table."""
    chosen = np.unique(np.linspace(0, len(table.problems) - 1, SELFTEST_PROBLEMS).round().astype(int))
    return tuple(table.problems[i] for i in chosen)

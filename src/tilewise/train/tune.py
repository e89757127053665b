"""The search for better parameters: many short looks, few long ones.

Bins are built once, folds are calibrated once, a trial learns from each problem's most promising kernels alone, its
trees stop growing once they no longer select better, and it ends in the first fold that looks hopeless. What it saves:
docs/benchmarks.md.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any, cast

import numpy as np
import optuna

from tilewise.errors import TilewiseError
from tilewise.train.baseline import Baselines
from tilewise.train.boosting import Bins
from tilewise.train.cross_validation import Fold, fold_growth, judge
from tilewise.train.dataset import Floats, Table
from tilewise.train.objectives import choose, efficiency_values, selection_time, trials_without_gain
from tilewise.train.result import TrialRecord, Tuning
from tilewise.train.settings import ModelSettings, TrainSettings, with_params
from tilewise.train.study import CHECKS, fingerprint, importances, open_study, records
from tilewise.train.tune_settings import TUNABLE, TuneSettings

OnTrial = Callable[[TrialRecord], None]


def tune(
    table: Table,
    bins: Bins,
    baselines: Baselines,
    folds: tuple[Fold, ...],
    settings: TrainSettings,
    on_trial: OnTrial | None = None,
) -> Tuning:
    """Search ``settings.tune.space`` around ``settings.model``.

    The first trial has the given parameters; :func:`~tilewise.train.objectives.choose` says which is taken.

    Args:
        table: the rows.
        bins: of ``table.matrix``.
        baselines: of `table`.
        folds: from :func:`~tilewise.train.cross_validation.make_folds`.
        settings: what is searched, how long, and where trials are kept.
        on_trial: told of each trial that is over, those of earlier calls and of other workers included.

    Raises:
        ConfigError: the storage cannot be used, or its study is of other data or settings.
        TilewiseError: a worker died; its trial is repeated by the next call.
    """
    budget = settings.tune
    if budget.n_trials < 2 or not budget.space:
        return Tuning(settings.model)
    mark = fingerprint(table, folds, settings)
    given = {n: _clip(getattr(settings.model, n), *budget.space[n]) for n in budget.space}
    study = open_study(table.target.name, mark, budget, given)
    told: set[int] = set()

    def tell() -> None:
        for record in records(study):
            if on_trial and record.number not in told:
                on_trial(record)
            told.add(record.number)

    tell()
    left = budget.n_trials - _n_finished(records(study))
    if left > 0:
        shares = [left // budget.workers + (i < left % budget.workers) for i in range(budget.workers)]
        plain = dataclasses.replace(table, features=cast(Any, None))  # features are functions: no process takes those
        others = [
            _Job(plain, table.features.names, folds, settings, study.study_name, mark, given, share)
            for share in shares[1:]
            if share
        ]
        threads = settings.threads if budget.workers == 1 else _share_of_cores(settings)
        search = _Search(table, bins, baselines, folds, dataclasses.replace(settings, threads=threads))
        if others:
            with ProcessPoolExecutor(len(others), mp_context=get_context("spawn")) as pool:
                working = [pool.submit(_work, job) for job in others]
                _run(study, search, shares[0], tell)
                try:
                    for worker in working:
                        worker.result()
                except BrokenProcessPool as e:
                    raise TilewiseError("a worker of the tuning died; the same command goes on without it") from e
        else:
            _run(study, search, shares[0], tell)
        tell()
    trials = records(study)
    best = choose(trials, budget)
    model = with_params(settings.model, best.params) if best else settings.model
    return Tuning(model, trials, study.study_name, best, importances(study))


def trial_model(settings: TrainSettings, params: dict[str, float | int]) -> ModelSettings:
    """How the trees of a trial with these parameters grow: as the model's would, but fewer."""
    model, budget = with_params(settings.model, params), settings.tune
    share = model.n_estimators / settings.model.n_estimators
    return dataclasses.replace(model, n_estimators=max(1, round(budget.n_estimators * share)))


@dataclass(frozen=True)
class _Search:
    """What a trial needs: Optuna calls it with one and gets its values."""

    table: Table
    bins: Bins
    baselines: Baselines
    folds: tuple[Fold, ...]
    settings: TrainSettings

    def __call__(self, trial: optuna.Trial) -> float | list[float]:
        budget = self.settings.tune
        params = {n: suggest(trial, n, *budget.space[n]) for n in budget.space}
        if trial.user_attrs.get("given"):  # exactly what was given, also where it lies outside the space
            params = {n: getattr(self.settings.model, n) for n in budget.space}
        trial.set_user_attr("params", params)
        seen: list[list[float]] = []
        folds = self.folds[: budget.n_folds]

        def look(first: int, check: int, values: Floats) -> None:
            """Stop where the folds seen, the one of step `first` as far as it has grown, are hopeless."""
            if len(budget.objectives) > 1:
                return  # Optuna prunes no others
            trial.report(float(np.mean([*seen, values.tolist()])), first + check)
            if first + check + 1 < CHECKS * len(folds) and trial.should_prune():
                trial.set_user_attr("folds", [*seen, values.tolist()])
                raise optuna.TrialPruned

        for number, fold in enumerate(folds):
            here = partial(look, CHECKS * number)
            values = self._fold_values(fold, params, here)
            here(CHECKS - 1, values)
            seen.append(values.tolist())
            trial.set_user_attr("folds", seen)
        means: list[float] = np.mean(seen, axis=0).tolist()
        return means if len(means) > 1 else means[0]

    def _fold_values(
        self, fold: Fold, params: dict[str, float | int], on_check: Callable[[int, Floats], None]
    ) -> Floats:
        """(objectives,) mean over the second half of what grew: by chance, a few trees more or less move a tail.

        `on_check` is told what that is so far, and after which of CHECKS, but for the last.
        """
        budget, model = self.settings.tune, trial_model(self.settings, params)
        rows, every = self.table.rows_of(fold.test), -(-model.n_estimators // CHECKS)
        seen: list[Floats] = []
        best, best_at = -np.inf, 0
        for growth in fold_growth(self.table, self.bins, self.baselines, fold, model, self.settings, every=every):
            seen.append(efficiency_values(budget.objectives, judge(self.table, rows, growth.scores).efficiency))
            values: Floats = np.mean(seen[len(seen) // 2 :], axis=0)
            if seen[-1][0] > best:
                best, best_at = seen[-1][0], growth.n_trees
            if budget.early_stopping and growth.n_trees - best_at >= budget.early_stopping:
                break
            if len(seen) < CHECKS:
                on_check(len(seen) - 1, values)
        if "selection_time" in budget.objectives:
            n_estimators = with_params(self.settings.model, params).n_estimators
            candidates = min(len(rows) / len(fold.test), model.shortlist or np.inf)
            cost = selection_time(growth.booster, n_estimators, candidates)
            values[budget.objectives.index("selection_time")] = cost
        return values


@dataclass(frozen=True)
class _Job:
    """What a worker in a process of its own is told; the table comes without its features."""

    table: Table
    feature_names: tuple[str, ...]
    folds: tuple[Fold, ...]
    settings: TrainSettings
    study: str
    mark: str
    given: dict[str, float | int]
    n_trials: int


def _work(job: _Job) -> None:
    settings = dataclasses.replace(
        job.settings,
        threads=_share_of_cores(job.settings),
        tune=dataclasses.replace(job.settings.tune, study=job.study),
    )
    table, model = job.table, settings.model
    bins = Bins(table.matrix, job.feature_names, model.max_bin, settings.threads)
    search = _Search(table, bins, Baselines(table, model, settings.seed), job.folds, settings)
    _run(open_study(table.target.name, job.mark, settings.tune, job.given), search, job.n_trials, lambda: None)


def _run(study: optuna.Study, search: _Search, n_trials: int, tell: Callable[[], None]) -> None:
    """Trial after trial, until this worker has done its share or the study has what it wants."""
    for _ in range(n_trials):
        if _is_over(records(study), search.settings.tune):
            break
        study.optimize(search, n_trials=1)
        tell()


def _is_over(trials: tuple[TrialRecord, ...], budget: TuneSettings) -> bool:
    if _n_finished(trials) >= budget.n_trials:
        return True
    return 0 < budget.patience <= trials_without_gain(trials, budget.objectives)


def _n_finished(trials: tuple[TrialRecord, ...]) -> int:
    return sum(t.state != "failed" for t in trials)


def _share_of_cores(settings: TrainSettings) -> int:
    return max(1, (settings.threads or os.cpu_count() or 1) // settings.tune.workers)


def suggest(trial: optuna.Trial, name: str, low: float, high: float) -> float | int:
    """The value that a trial tries for a parameter of :data:`TUNABLE`."""
    kind = TUNABLE[name]
    if kind.integer:
        return trial.suggest_int(name, int(low), int(high), log=kind.log)
    drawn = trial.suggest_float(name, float(low), float(high), log=kind.log)
    return _clip(float(f"{drawn:.3g}"), low, high)  # no digits that mean nothing: they end up in a file


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)

"""The parameter search: many short trials instead of few long ones.

Bins and fold calibrations are computed once. A trial trains on each problem's shortlist, stops growing trees that no
longer improve the selections, and is pruned within the first fold that looks hopeless. docs/benchmarks.md has figures.
The trees of the best trial so far are kept: the cross-validation of its settings grows them on.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field
from functools import partial
from multiprocessing import get_context
from uuid import uuid4

import numpy as np
import optuna

from tilewise.cluster import LOCAL, Executor
from tilewise.errors import TilewiseError
from tilewise.train._cross_validation import Fold, FoldTrees, TrainingData, steps
from tilewise.train._dataset import Floats
from tilewise.train._settings import ModelSettings, TrainSettings, with_params
from tilewise.train._training_result import TrialResult, TuningResult
from tilewise.train._tune_settings import TUNABLE, TuneSettings
from tilewise.train.tuning._objectives import choose, efficiency_values, selection_time, trials_without_gain
from tilewise.train.tuning._study import (
    CHECKPOINTS,
    TASK,
    Params,
    fingerprint,
    finished_trials,
    open_study,
    parameter_importances,
    repeat_lost,
    with_absolute_path,
)

OnTrial = Callable[[TrialResult], None]


def tune(
    data: TrainingData, folds: tuple[Fold, ...], on_trial: OnTrial | None = None, executor: Executor = LOCAL
) -> tuple[TuningResult, tuple[FoldTrees, ...]]:
    """Search ``settings.tune.space`` around ``settings.model``, both of ``data.settings``.

    The first trial has the initial parameters; :func:`~tilewise.train.tuning._objectives.choose` picks the best trial.

    Args:
        data: the prepared table.
        folds: from :func:`~tilewise.train.make_folds`.
        on_trial: called with each trial that is over, including those of earlier calls and of other workers.
        executor: runs the trials, one a task, if the study is in a database that its workers share.

    Returns:
        The result, and the trees of the best trial's folds as far as they grew: none where it ran in another process,
        in an earlier call or with another number of threads.

    Raises:
        ConfigError: the storage cannot be used, or its study has other data or settings.
        TilewiseError: a worker died; calling again repeats its trial.
    """
    settings, budget = data.settings, data.settings.tune
    if budget.n_trials < 2 or not budget.space:
        return TuningResult(settings.model), ()
    mark = fingerprint(data.table, folds, settings)
    initial = {n: _clip(getattr(settings.model, n), *budget.space[n]) for n in budget.space}
    study = open_study(data.table.target.name, mark, budget, initial)
    report = _Reporter(study, on_trial)
    report()
    left = budget.n_trials - _n_finished(finished_trials(study))
    storage = budget.storage and with_absolute_path(budget.storage)
    job = _Job(data, folds, study.study_name, storage, mark, initial)
    threads = settings.threads if budget.workers == 1 else _threads_per_worker(settings)
    search = _Search(dataclasses.replace(data, settings=dataclasses.replace(settings, threads=threads)), folds)
    if left > 0 and budget.storage and not executor.is_local:
        executor.map(_run_one, job, [uuid4().hex for _ in range(left)], lambda _: report())
    elif left > 0:
        first, *others = _shares(left, budget.workers)
        _run_workers(job, others, lambda: _run(study, search, first, report))
    report()
    trials = finished_trials(study)
    best = choose(trials, budget)
    model = with_params(settings.model, best.params) if best else settings.model
    grown = search.grown_by(best) if threads == settings.threads else ()
    return TuningResult(model, trials, study.study_name, best, parameter_importances(study)), grown


def trial_model(settings: TrainSettings, params: Params) -> ModelSettings:
    """Return the settings of a trial's trees: those of the model with `params`, but fewer trees."""
    model, budget = with_params(settings.model, params), settings.tune
    share = model.n_estimators / settings.model.n_estimators
    return dataclasses.replace(model, n_estimators=max(1, round(budget.n_estimators * share)))


class _Reporter:
    """Reports each finished trial of a study once."""

    def __init__(self, study: optuna.Study, on_trial: OnTrial | None) -> None:
        self._study, self._on_trial = study, on_trial
        self._reported: set[int] = set()

    def __call__(self) -> None:
        for trial in finished_trials(self._study):
            if self._on_trial and trial.number not in self._reported:
                self._on_trial(trial)
            self._reported.add(trial.number)


@dataclass(frozen=True)
class _Search:
    """The objective function of the study.

    Attributes:
        data: the prepared table.
        folds: its folds.
        task: the task of an executor that runs one trial, kept with the trial; empty elsewhere.
        grown: trees of each fold, by the number of the trial: those of the best trial alone, after each trial.
    """

    data: TrainingData
    folds: tuple[Fold, ...]
    task: str = ""
    grown: dict[int, tuple[FoldTrees, ...]] = field(default_factory=dict)

    def grown_by(self, trial: TrialResult | None) -> tuple[FoldTrees, ...]:
        """Return the trees of a trial; none where it did not run here."""
        return self.grown.get(trial.number, ()) if trial else ()

    def keep_only(self, trial: TrialResult | None) -> None:
        """Let go of the trees of all other trials."""
        for number in [n for n in self.grown if trial is None or n != trial.number]:
            del self.grown[number]

    def __call__(self, trial: optuna.Trial) -> float | list[float]:
        settings, budget = self.data.settings, self.data.settings.tune
        if self.task:
            trial.set_user_attr(TASK, self.task)
        params: Params = {n: suggest(trial, n, *budget.space[n]) for n in budget.space}
        if trial.user_attrs.get("given"):  # the initial parameters, even where they lie outside the space
            params = {n: getattr(settings.model, n) for n in budget.space}
        trial.set_user_attr("params", params)
        folds, done = self.folds[: budget.n_folds], list[list[float]]()

        def prune(first_step: int, checkpoint: int, values: Floats) -> None:
            """Stop the trial if the finished folds and the one that started at `first_step` are hopeless so far."""
            if len(budget.objectives) > 1:
                return  # Optuna prunes studies of a single objective only
            trial.report(float(np.mean([*done, values.tolist()])), first_step + checkpoint)
            if first_step + checkpoint + 1 < CHECKPOINTS * len(folds) and trial.should_prune():
                trial.set_user_attr("folds", [*done, values.tolist()])
                raise optuna.TrialPruned

        grown: list[FoldTrees] = []
        for number, fold in enumerate(folds):
            prune_here = partial(prune, CHECKPOINTS * number)
            values, trees = self._grow(fold, params, prune_here)
            prune_here(CHECKPOINTS - 1, values)
            done.append(values.tolist())
            trial.set_user_attr("folds", done)
            grown.append(trees)
        self.grown[trial.number] = tuple(grown)
        means: list[float] = np.mean(done, axis=0).tolist()
        return means if len(means) > 1 else means[0]

    def _grow(
        self, fold: Fold, params: Params, on_checkpoint: Callable[[int, Floats], None]
    ) -> tuple[Floats, FoldTrees]:
        """Return the objectives of a fold, means over the second half of the checkpoints, and the fold's trees.

        The mean smooths the tail, which a few trees more or less change by chance.

        Args:
            fold: the fold.
            params: tuned parameters.
            on_checkpoint: called with the number of each of CHECKPOINTS except the last, and the objectives so far.
        """
        data, budget, model = self.data, self.data.settings.tune, with_params(self.data.settings.model, params)
        most = trial_model(data.settings, params).n_estimators
        trees = FoldTrees(data, fold, model, most=most)
        history: list[Floats] = []
        best, best_at = -np.inf, 0
        for n_trees in steps(most, -(-most // CHECKPOINTS)):
            history.append(efficiency_values(budget.objectives, trees.efficiency(n_trees)))
            values: Floats = np.mean(history[len(history) // 2 :], axis=0)
            if history[-1][0] > best:
                best, best_at = history[-1][0], n_trees
            if budget.early_stopping and n_trees - best_at >= budget.early_stopping:
                break
            if len(history) < CHECKPOINTS:
                on_checkpoint(len(history) - 1, values)
        if "selection_time" in budget.objectives:
            rows = data.table.measured_rows_of(fold.test)
            candidates = min(len(rows) / len(fold.test), model.shortlist or np.inf)
            cost = selection_time(trees.booster, model.n_estimators, candidates)
            values[budget.objectives.index("selection_time")] = cost
        return values, trees


@dataclass(frozen=True)
class _Job:
    """Input of a worker process."""

    data: TrainingData
    folds: tuple[Fold, ...]
    study: str
    storage: str | None
    mark: str
    initial: Params


def _shares(n_trials: int, workers: int) -> list[int]:
    """Return `n_trials` as equal parts for at most this many workers, none of them empty."""
    parts = [n_trials // workers + (i < n_trials % workers) for i in range(workers)]
    return [part for part in parts if part]


def _run_workers(job: _Job, shares: list[int], run_here: Callable[[], None]) -> None:
    """Run `run_here` in this process, and one worker process per share of trials beside it."""
    if not shares:
        run_here()
        return
    with ProcessPoolExecutor(len(shares), mp_context=get_context("spawn")) as pool:
        working = [pool.submit(_work, job, share) for share in shares]
        run_here()
        try:
            for worker in working:
                worker.result()
        except BrokenProcessPool as e:
            raise TilewiseError("a tuning worker died; run the same command again to continue the search") from e


def _work(job: _Job, n_trials: int) -> None:
    threads = _threads_per_worker(job.data.settings)
    own = dataclasses.replace(job.data, settings=dataclasses.replace(job.data.settings, threads=threads))
    _run(_open(job), _Search(own, job.folds), n_trials, lambda: None)


def _run_one(job: _Job, task: str) -> None:
    """Run one trial; repeat it if the task's earlier worker was lost."""
    study = _open(job)
    if not repeat_lost(study, task):
        _run(study, _Search(job.data, job.folds, task), 1, lambda: None)


def _open(job: _Job) -> optuna.Study:
    tune = dataclasses.replace(job.data.settings.tune, study=job.study, storage=job.storage)
    return open_study(job.data.table.target.name, job.mark, tune, job.initial)


def _run(study: optuna.Study, search: _Search, n_trials: int, report: Callable[[], None]) -> None:
    """Run trials until this worker has run its share, or the study is over."""
    for _ in range(n_trials):
        if _is_over(finished_trials(study), search.data.settings.tune):
            break
        study.optimize(search, n_trials=1)
        search.keep_only(choose(finished_trials(study), search.data.settings.tune))
        report()


def _is_over(trials: tuple[TrialResult, ...], budget: TuneSettings) -> bool:
    if _n_finished(trials) >= budget.n_trials:
        return True
    return 0 < budget.patience <= trials_without_gain(trials, budget.objectives)


def _n_finished(trials: tuple[TrialResult, ...]) -> int:
    return sum(t.state != "failed" for t in trials)


def _threads_per_worker(settings: TrainSettings) -> int:
    return max(1, (settings.threads or os.cpu_count() or 1) // settings.tune.workers)


def suggest(trial: optuna.Trial, name: str, low: float, high: float) -> float | int:
    """Return the value that a trial draws for a parameter of :data:`TUNABLE`."""
    kind = TUNABLE[name]
    if kind.integer:
        return trial.suggest_int(name, int(low), int(high), log=kind.log)
    drawn = trial.suggest_float(name, float(low), float(high), log=kind.log)
    return _clip(float(f"{drawn:.3g}"), low, high)  # three digits: the values end up in a configuration file


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)

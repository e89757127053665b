"""A small, seeded search for better parameters: trials stop after the first folds that look hopeless."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np
import optuna

from tilewise.metrics import objective
from tilewise.train.baseline import Baselines
from tilewise.train.boosting import Bins
from tilewise.train.cross_validation import Fold, fold_score, judge
from tilewise.train.dataset import Table
from tilewise.train.result import TrialRecord, TrialState
from tilewise.train.settings import TUNABLE, ModelSettings, TrainSettings, with_params

# Folds differ by several points, trials on one fold by much less: a gap this wide does not close on later folds.
PRUNE_GAP = 0.005


class FoldPruner(optuna.pruners.BasePruner):
    """Stops a trial that, over the folds it has seen, lies behind the best completed trial on those same folds.

    Comparing fold by fold leaves out how hard a fold is, which a median over trials at one step would keep.
    """

    def __init__(self, gap: float) -> None:
        self._gap = gap

    def prune(self, study: optuna.Study, trial: optuna.trial.FrozenTrial) -> bool:
        """Whether to stop now."""
        done = study.get_trials(deepcopy=False, states=(optuna.trial.TrialState.COMPLETE,))
        if not done or not trial.intermediate_values:
            return False
        step = max(trial.intermediate_values)
        best = max(t.intermediate_values[step] for t in done)
        return bool(trial.intermediate_values[step] < best - self._gap)


def tune(
    table: Table,
    bins: Bins,
    baselines: Baselines,
    folds: tuple[Fold, ...],
    settings: TrainSettings,
    on_trial: Callable[[TrialRecord], None] | None = None,
) -> tuple[ModelSettings, tuple[TrialRecord, ...]]:
    """Search ``settings.tune.space`` around ``settings.model``.

    The objective is (mean + P10 efficiency) / 2, averaged over the folds. Trial 0 has the given parameters; a trial
    is pruned once its average so far lies :data:`PRUNE_GAP` behind the best trial's over the same folds.

    Returns:
        The parameters of the best completed trial, and all trials.
    """
    budget = settings.tune
    if budget.n_trials < 2 or not budget.space:
        return settings.model, ()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        direction="maximize",
        sampler=optuna.samplers.TPESampler(seed=budget.seed, n_startup_trials=max(4, budget.n_trials // 4)),
        pruner=FoldPruner(PRUNE_GAP),
    )
    study.enqueue_trial({n: _clip(getattr(settings.model, n), *budget.space[n]) for n in budget.space})
    seen = folds[: budget.n_folds]
    shorter = dataclasses.replace(settings.model, n_estimators=budget.n_estimators)
    records: list[TrialRecord] = []

    def run(trial: optuna.Trial) -> float:
        params = {n: _suggest(trial, n, *budget.space[n]) for n in budget.space}
        if trial.number == 0:  # exactly what was given, also where it lies outside the space
            params = {n: getattr(settings.model, n) for n in budget.space}
        model = with_params(shorter, params)
        values: list[float] = []
        state: TrialState = "pruned"
        for step, fold in enumerate(seen):
            values.append(_fold_value(table, bins, baselines, fold, model, settings))
            trial.report(float(np.mean(values)), step)
            if step + 1 < len(seen) and trial.should_prune():
                break
        else:
            state = "complete"
        records.append(TrialRecord(trial.number, params, float(np.mean(values)), tuple(values), state))
        if on_trial:
            on_trial(records[-1])
        if state == "pruned":
            raise optuna.TrialPruned
        return records[-1].value

    study.optimize(run, n_trials=budget.n_trials)
    best = max((r for r in records if r.state == "complete"), key=lambda r: r.value)  # ties: the earlier trial
    return with_params(settings.model, best.params), tuple(records)


def _fold_value(
    table: Table, bins: Bins, baselines: Baselines, fold: Fold, model: ModelSettings, settings: TrainSettings
) -> float:
    score = fold_score(table, bins, baselines, fold, model, settings)
    return objective(judge(table, table.rows_of(fold.test), score).efficiency)


def _suggest(trial: optuna.Trial, name: str, low: float, high: float) -> float | int:
    kind = TUNABLE[name]
    if kind.integer:
        return trial.suggest_int(name, int(low), int(high), log=kind.log)
    return trial.suggest_float(name, float(low), float(high), log=kind.log)


def _clip(value: float, low: float, high: float) -> float:
    return min(max(value, low), high)

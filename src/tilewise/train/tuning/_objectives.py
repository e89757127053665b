"""Objectives of a trial, and the choice of the best trial where there are several objectives."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tilewise.metrics import objective
from tilewise.train._dataset import Floats
from tilewise.train._training_result import TrialResult
from tilewise.train._tune_settings import TuneSettings

if TYPE_CHECKING:
    import lightgbm as lgb

LOWER_IS_BETTER = ("selection_time",)
_EFFICIENCY: Mapping[str, Callable[[Floats], float]] = {
    "efficiency": objective,
    "mean": lambda efficiency: float(np.mean(efficiency)),
    "p10": lambda efficiency: float(np.percentile(efficiency, 10)),
}


def efficiency_values(names: Sequence[str], efficiency: Floats) -> Floats:
    """Return the objectives that depend on the efficiency of the selections alone, of shape (names,); NaN for others.

    ``efficiency`` is (mean + P10) / 2, see :func:`tilewise.metrics.objective`; ``mean`` and ``p10`` are its parts.
    """
    return np.array([_EFFICIENCY[n](efficiency) if n in _EFFICIENCY else np.nan for n in names])


def selection_time(booster: lgb.Booster, n_estimators: int, candidates: float) -> float:
    """Return the thousands of tree nodes that ranking one problem visits: a machine-independent selection time.

    It is candidates x trees x mean path length, over the rows that the trees were grown on. A row at the root of a tree
    passes each split on its path, so the mean path length is the sum of the splits' row counts over the root's.

    Args:
        booster: the trees grown so far.
        n_estimators: number of trees of the final model.
        candidates: kernels that are ranked per problem.
    """
    counts = re.findall(r"^internal_count=(.*)$", booster.model_to_string(), flags=re.MULTILINE)
    paths = [np.array(line.split(), dtype=np.float64) for line in counts]
    lengths = [float(path.sum() / path[0]) for path in paths if len(path)]
    return candidates * n_estimators * sum(lengths) / max(booster.num_trees(), 1) / 1000


def choose(trials: Sequence[TrialResult], settings: TuneSettings) -> TrialResult | None:
    """Return the trial whose parameters are used; None where no trial is complete.

    One objective: the best of the trials that are no worse than the initial parameters on any fold, the earlier of two
    equals. A better mean alone is not enough: among many trials, some are lucky.

    Several objectives: of the Pareto front, the trials whose ``selection_time`` (if it is an objective) is at most
    ``max_slowdown`` times that of the initial parameters; of these, the trials whose ``p10`` (if it is an objective,
    but not the first) lies at most ``p10_slack`` below the best; of these, the best by the first objective.
    """
    done = [t for t in trials if t.state == "complete"]
    first, *others = settings.objectives
    initial = next((t for t in done if t.is_initial), None)
    kept = pareto_front(done, settings.objectives) if others else [t for t in done if _never_worse(t, initial)]
    if "selection_time" in others and initial:
        most = settings.max_slowdown * initial.values["selection_time"]
        kept = [t for t in kept if t.values["selection_time"] <= most]
    if "p10" in others and kept:
        least = max(t.values["p10"] for t in kept) - settings.p10_slack
        kept = [t for t in kept if t.values["p10"] >= least]
    return max(kept, key=lambda t: t.values[first], default=None)


def _never_worse(trial: TrialResult, initial: TrialResult | None) -> bool:
    return initial is None or all(a >= b for a, b in zip(trial.fold_values, initial.fold_values, strict=True))


def pareto_front(trials: Iterable[TrialResult], objectives: Sequence[str]) -> list[TrialResult]:
    """Return the trials that no other trial matches in all objectives, in order; of equals the first."""
    front: list[TrialResult] = []
    for trial in trials:
        front = _entered(front, trial, objectives)
    return front


def trials_without_gain(trials: Sequence[TrialResult], objectives: Sequence[str]) -> int:
    """Return the number of finished trials since the Pareto front last changed."""
    front: list[TrialResult] = []
    without = 0
    for trial in trials:
        if trial.state == "failed":
            continue
        entered = _entered(front, trial, objectives) if trial.state == "complete" else front
        without = without + 1 if entered is front else 0
        front = entered
    return without


def _entered(front: list[TrialResult], trial: TrialResult, objectives: Sequence[str]) -> list[TrialResult]:
    """Return the front with `trial`, without the trials it beats; `front` itself where one of them is as good."""
    if any(_is_as_good(other, trial, objectives) for other in front):
        return front
    return [other for other in front if not _is_as_good(trial, other, objectives)] + [trial]


def _is_as_good(a: TrialResult, b: TrialResult, objectives: Sequence[str]) -> bool:
    return all(
        a.values[name] <= b.values[name] if name in LOWER_IS_BETTER else a.values[name] >= b.values[name]
        for name in objectives
    )

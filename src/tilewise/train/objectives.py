"""What a trial is judged by, and which trial is taken where there are several objectives."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tilewise.metrics import objective
from tilewise.train.dataset import Floats
from tilewise.train.result import TrialRecord
from tilewise.train.tune_settings import TuneSettings

if TYPE_CHECKING:
    import lightgbm as lgb

LOWER_IS_BETTER = ("selection_time",)
_EFFICIENCY: Mapping[str, Callable[[Floats], float]] = {
    "efficiency": objective,
    "mean": lambda efficiency: float(np.mean(efficiency)),
    "p10": lambda efficiency: float(np.percentile(efficiency, 10)),
}


def efficiency_values(names: Sequence[str], efficiency: Floats) -> Floats:
    """(names,) the objectives that only need the efficiency of each problem's selection; NaN for others.

    ``efficiency`` is (mean + P10) / 2, see :func:`tilewise.metrics.objective`; ``mean`` and ``p10`` are its parts.
    """
    return np.array([_EFFICIENCY[n](efficiency) if n in _EFFICIENCY else np.nan for n in names])


def selection_time(booster: lgb.Booster, n_estimators: int, candidates: float) -> float:
    """Thousands of tree nodes that ranking one problem's candidates visits: what selecting costs, on any machine.

    candidates x trees x mean length of a path, counted over the rows that the trees were grown on: a row at the root
    of a tree visits each split on its way, so the path's mean is the sum of the splits' row counts / the root's.

    Args:
        booster: the trees there are.
        n_estimators: the trees that the model will have.
        candidates: rows to rank for a problem.
    """
    counts = re.findall(r"^internal_count=(.*)$", booster.model_to_string(), flags=re.MULTILINE)
    paths = [np.array(line.split(), dtype=np.float64) for line in counts]
    lengths = [float(path.sum() / path[0]) for path in paths if len(path)]
    return candidates * n_estimators * sum(lengths) / max(booster.num_trees(), 1) / 1000


def choose(trials: Sequence[TrialRecord], settings: TuneSettings) -> TrialRecord | None:
    """The trial whose parameters are taken; None where none is complete.

    One objective: the best of those that are no worse than the given parameters on any fold, the earlier of two equals;
    as the given ones are among them, nothing else is taken for its mean alone, which many trials make lucky.

    Several: of the Pareto front, those whose ``selection_time`` (if it counts) is at most ``max_slowdown`` times that
    of the given parameters; of these, those whose ``p10`` (if it counts and does not come first) lies at most
    ``p10_slack`` below the best; of these, the best by the first.
    """
    done = [t for t in trials if t.state == "complete"]
    first, *others = settings.objectives
    given = next((t for t in done if t.given), None)
    kept = pareto_front(done, settings.objectives) if others else [t for t in done if _never_worse(t, given)]
    if "selection_time" in others and given:
        most = settings.max_slowdown * given.values["selection_time"]
        kept = [t for t in kept if t.values["selection_time"] <= most]  # what dominates the given one is in time too
    if "p10" in others and kept:
        least = max(t.values["p10"] for t in kept) - settings.p10_slack
        kept = [t for t in kept if t.values["p10"] >= least]
    return max(kept, key=lambda t: t.values[first], default=None)


def _never_worse(trial: TrialRecord, given: TrialRecord | None) -> bool:
    return given is None or all(a >= b for a, b in zip(trial.fold_values, given.fold_values, strict=True))


def pareto_front(trials: Iterable[TrialRecord], objectives: Sequence[str]) -> list[TrialRecord]:
    """The trials that no other beats in every objective, in order; of equals the first."""
    front: list[TrialRecord] = []
    for trial in trials:
        front = _entered(front, trial, objectives)
    return front


def trials_without_gain(trials: Sequence[TrialRecord], objectives: Sequence[str]) -> int:
    """How many finished trials came after the last that was better, in an objective at least, than all before it."""
    front: list[TrialRecord] = []
    without = 0
    for trial in trials:
        if trial.state == "failed":
            continue
        entered = _entered(front, trial, objectives) if trial.state == "complete" else front
        without = without + 1 if entered is front else 0
        front = entered
    return without


def _entered(front: list[TrialRecord], trial: TrialRecord, objectives: Sequence[str]) -> list[TrialRecord]:
    """The front with `trial`, without what it beats; `front` itself where a trial there is as good in everything."""
    if any(_is_as_good(other, trial, objectives) for other in front):
        return front
    return [other for other in front if not _is_as_good(trial, other, objectives)] + [trial]


def _is_as_good(a: TrialRecord, b: TrialRecord, objectives: Sequence[str]) -> bool:
    return all(
        a.values[name] <= b.values[name] if name in LOWER_IS_BETTER else a.values[name] >= b.values[name]
        for name in objectives
    )

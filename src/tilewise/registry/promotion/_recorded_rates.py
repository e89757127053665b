"""The comparison of the measurements with those that production was judged on.

A table with altered rates, or without the rows of the kernels that a bad model selects, makes it look good. So both
models' efficiencies on production's problems are computed by the recorded measurements too. A table without the
kernels that production selects makes production look bad, or hides that a candidate's pool lacks them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import numpy as np

from tilewise.errors import ConfigError
from tilewise.model import TrainedModel
from tilewise.ops import Problem
from tilewise.registry.promotion._holdout_problems import KERNELS_KEPT, HoldoutProblems, RecordedHoldout
from tilewise.registry.promotion._override import Override

AGREEMENT_POINTS = 1.0  # between the mean efficiencies by recorded and by present measurements

Rates = Mapping[str, float]  # TFLOPS by kernel name


def waived_rates(
    holdout: HoldoutProblems,
    candidate: TrainedModel,
    incumbent: TrainedModel | None,
    record: RecordedHoldout | None,
    override: Override,
) -> list[str]:
    """Return in words how the measurements contradict production's record, if that is waived; else an empty list.

    Args:
        holdout: The holdout to judge on.
        candidate: The model to judge.
        incumbent: The model in production; None without one.
        record: The holdout that production was judged on; None without one.
        override: The rules that may be waived.

    Raises:
        ConfigError: They contradict it, and no override waives the rule.
    """
    if record is None or record.problems is None:
        return []
    fault = find_contradiction(record.problems, holdout, candidate, incumbent)
    if fault is None:
        return []
    rule = f"measurements of production's problems must agree with those that it was judged on, but {fault}"
    remedy = "compare data= with the earlier measurements"
    override.waive(f"{rule}; {remedy}", "gate.override.holdout=true", ConfigError, requested=override.holdout)
    return [rule]


def find_contradiction(
    recorded: HoldoutProblems, now: HoldoutProblems, candidate: TrainedModel, incumbent: TrainedModel | None
) -> str | None:
    """Return in words which measurements of the recorded problems are lost or differ; None if they agree.

    The kernels that the incumbent selects must still be measured. Each model's mean efficiency may differ by at most
    :data:`AGREEMENT_POINTS`; for it, only kernels count that were measured then, and that are measured now or belong
    to the candidate's pool.
    """
    shared = [key for key in recorded.rates if key in now.rates]
    if not shared:
        return None
    if incumbent is not None:
        picks = {key: _selected(_order(incumbent, now.problems[key]), recorded.rates[key]) for key in shared}
        lost = sum(name is not None and name not in now.rates[key] for key, name in picks.items())
        if lost > max((1 - KERNELS_KEPT) * len(shared), 1):
            return f"the kernels that production selects are no longer measured for {lost} of {len(shared)} problems"
    known = {name for rates in now.rates.values() for name in rates} | set(candidate.pool.names)
    for role, model in (("the candidate's", candidate), ("production's", incumbent)):
        if model is None:
            continue
        before, after = np.mean(
            [_efficiencies(model, now.problems[key], recorded.rates[key], now.rates[key], known) for key in shared],
            axis=0,
        )
        if abs(before - after) * 100 > AGREEMENT_POINTS:
            return f"{role} mean efficiency is {before:.2%} by those and {after:.2%} by these"
    return None


def _efficiencies(
    model: TrainedModel, problem: Problem, recorded: Rates, now: Rates, known: Set[str]
) -> tuple[float, float]:
    """Return the efficiency of the model's best kernels by the recorded and by the present measurements."""
    order = _order(model, problem)
    before = {name: rate for name, rate in recorded.items() if name in known}
    after = {name: rate for name, rate in now.items() if name in recorded}
    return _efficiency(order, before), _efficiency(order, after)


def _order(model: TrainedModel, problem: Problem) -> list[str]:
    """Return the names of the model's kernels for a problem, best first."""
    return [model.pool.names[i] for i in model.rank(problem)]


def _selected(order: Sequence[str], rates: Rates) -> str | None:
    """Return the first measured kernel of a ranking; None if none is measured."""
    return next((name for name in order if name in rates), None)


def _efficiency(order: Sequence[str], rates: Rates) -> float:
    """Return the rate of the first measured kernel of a ranking / the highest rate; 0 if none is measured."""
    selected = _selected(order, rates)
    return rates[selected] / max(rates.values()) if selected else 0.0

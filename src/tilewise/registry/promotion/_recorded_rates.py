"""The comparison of the measurements with those that production was judged on.

A table with altered rates, or without the rows of the kernels that a bad model selects, makes it look good. So both
models' efficiencies on production's problems are computed by the recorded measurements too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

import numpy as np

from tilewise.errors import ConfigError
from tilewise.model import TrainedModel
from tilewise.ops import Problem
from tilewise.registry._versions import Version
from tilewise.registry.promotion._holdout_problems import HoldoutProblems, recorded_holdout
from tilewise.registry.promotion._override import Override

AGREEMENT_POINTS = 1.0  # between the mean efficiencies by recorded and by present measurements

Rates = Mapping[str, float]  # TFLOPS by kernel name


def waived_rates(
    holdout: HoldoutProblems, models: Sequence[TrainedModel], production: Version | None, override: Override
) -> list[str]:
    """Return in words how the measurements contradict production's record, if that is waived; else an empty list.

    Args:
        holdout: The holdout to judge on.
        models: The candidate and, if there is one, the model in production.
        production: The version in production.
        override: The rules that may be waived.

    Raises:
        ConfigError: They contradict it, and no override waives the rule.
    """
    record = recorded_holdout(models[0].target.name, production)
    if record is None or record.problems is None:
        return []
    fault = find_contradiction(record.problems, holdout, models)
    if fault is None:
        return []
    rule = f"measurements of production's problems must agree with those that it was judged on, but {fault}"
    remedy = "compare data= with the earlier measurements"
    override.waive(f"{rule}; {remedy}", "gate.override.holdout=true", ConfigError, requested=override.holdout)
    return [rule]


def find_contradiction(recorded: HoldoutProblems, now: HoldoutProblems, models: Sequence[TrainedModel]) -> str | None:
    """Return in words which model's mean efficiency differs by more than :data:`AGREEMENT_POINTS`; else None.

    Only kernels count that were measured then, and that are measured now or belong to the first model's pool.
    """
    shared = [key for key in recorded.rates if key in now.rates]
    if not shared:
        return None
    known = {name for rates in now.rates.values() for name in rates} | set(models[0].pool.names)
    for role, model in zip(("the candidate's", "production's"), models, strict=False):
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
    order = [model.pool.names[i] for i in model.rank(problem)]
    before = {name: rate for name, rate in recorded.items() if name in known}
    after = {name: rate for name, rate in now.items() if name in recorded}
    return _efficiency(order, before), _efficiency(order, after)


def _efficiency(order: Sequence[str], rates: Rates) -> float:
    """Return the rate of the first measured kernel of a ranking / the highest rate; 0 if none is measured."""
    selected = next((rates[name] for name in order if name in rates), 0.0)
    return selected / max(rates.values(), default=1.0)

"""Explanations of decisions: the ranking, and the features that set the winner apart from the runner-up."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import TYPE_CHECKING, TypedDict

from tilewise.dispatch._generation import Generation
from tilewise.dispatch._selection import Decision
from tilewise.dispatch.logs import DecisionLine, describe_decision
from tilewise.model import TrainedModel, contributions
from tilewise.ops import Problem

if TYPE_CHECKING:
    import numpy as np

COST_MODEL = "launch estimate"  # the cost model's prediction counts as one feature
MAX_FEATURES = 8


class FeatureShare(TypedDict):
    """The part of one feature in the difference between two kernels.

    Attributes:
        feature, unit, meaning: see :class:`tilewise.features.Feature`.
        winner, runner_up: the feature's values.
        percent: by how much the feature raises the winner's TFLOPS; the factors of all features multiply to the ratio
            of the two predictions (with the label log1p: of 1 + TFLOPS).
    """

    feature: str
    unit: str
    meaning: str
    winner: float
    runner_up: float
    percent: float


class Explanation(DecisionLine):
    """A decision with its reasons.

    Attributes:
        supported: number of kernels that may be selected.
        runner_up: name of the second kernel; None if no model decides or one kernel is left.
        features: the features that set the model's first kernel apart from its second, most important first.
    """

    supported: int
    runner_up: str | None
    features: list[FeatureShare]


def explain_decision(
    generation: Generation, problem: Problem, decision: Decision, seconds: float = 0.0
) -> Explanation:  # fmt: skip
    """Return a decision as plain data: all that the decision log has, and the reasons.

    Args:
        generation: the generation that decided.
        problem: the problem it decided on.
        decision: the decision.
        seconds: duration of the decision.
    """
    line = describe_decision(generation, problem, decision, seconds, datetime.now(UTC))
    runner_up, features = None, list[FeatureShare]()
    names = [name for name, _ in line["ranking"][:2]]
    if generation.model is not None and len(names) == 2:
        winner, other = (generation.pool.names.index(name) for name in names)
        runner_up = names[1]
        features = compare_kernels(generation.model, problem, winner, other)[:MAX_FEATURES]
    supported = int(generation.supported(problem).sum())
    return {**line, "supported": supported, "runner_up": runner_up, "features": features}


def compare_kernels(model: TrainedModel, problem: Problem, winner: int, other: int) -> list[FeatureShare]:
    """Return the features in which two kernels of the pool differ for a problem, most important first.

    Args:
        model: predicts both.
        problem: the problem.
        winner: index of one kernel in the pool.
        other: index of the other.
    """
    pair = [winner, other]
    columns = {name: values[pair] for name, values in model.pool.columns.items()}
    matrix = model.matrix(problem.to_dict(), columns)
    shares = contributions(model.scores, *matrix)
    rows = [
        _row(f.name, f.unit, f.meaning, values, share)
        for f, values, share in zip(model.features.features, matrix.T, shares.tolist(), strict=True)
        if share
    ]
    rates = model.log_rates(problem.to_dict(), columns)
    if rates is not None:
        meaning = "what the launch takes by its waves, bytes and steps; the trees correct it"
        rows.append(_row(COST_MODEL, "TFLOPS", meaning, [math.exp(r) for r in rates], float(rates[0] - rates[1])))
    return sorted(rows, key=lambda row: -abs(math.log1p(row["percent"] / 100)))


def _row(name: str, unit: str, meaning: str, values: np.ndarray | list[float], share: float) -> FeatureShare:
    one, two = (float(v) for v in values)
    return {
        "feature": name,
        "unit": unit,
        "meaning": meaning,
        "winner": one,
        "runner_up": two,
        "percent": 100 * math.expm1(share),
    }

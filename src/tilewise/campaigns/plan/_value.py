"""Choose the shapes of a trace of calls to measure, by the GPU time that a second of measuring saves.

Shapes that are called often, take long, and have an uncertain selection come first. Measuring a shape is expected to
save ``calls x time of the selection x expected regret``. The expected regret is the mean loss of rankings of similar
risk in the calibration (:mod:`tilewise.model`). That holds for shapes like those of the calibration. A shape that lies
farther from all of them than they lie from each other counts as the worst tenth of the riskiest bin. Without a model or
a calibration the regret is unknown, and all shapes are equally risky.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd

from tilewise.campaigns.plan._choice import Bools, choose_kernels, within_budget
from tilewise.campaigns.plan._propose import (
    PlanSettings,
    Scored,
    candidates,
    items_of,
    known_keys,
    seconds_of,
    unscored,
)
from tilewise.collect import Item, Plan
from tilewise.errors import DataError
from tilewise.features import log_sizes, shape_distances
from tilewise.kernels import Pool
from tilewise.metrics import Floats, Ints
from tilewise.model import TrainedModel, covariates_of
from tilewise.ops import Problem

USUAL = 0.9  # share of the known shapes that have another one within the usual distance


@dataclass(frozen=True)
class Stakes:
    """Cost of measuring some shapes, and the time that it may save.

    Attributes:
        calls: calls in the trace, of shape (problems,).
        pick_ms: predicted time of the present selection, of shape (problems,).
        regret: expected share of that time that the fastest kernel saves, of shape (problems,); NaN where unknown.
        seconds: expected seconds of measuring, of shape (problems,).
    """

    calls: Floats
    pick_ms: Floats
    regret: Floats
    seconds: Floats

    @property
    def spent_s(self) -> Floats:
        """GPU seconds of the traced calls, of shape (problems,)."""
        return self.calls * self.pick_ms / 1e3

    @property
    def saved_s(self) -> Floats:
        """GPU seconds that the fastest kernels would save the traced calls, of shape (problems,); NaN: unknown."""
        return self.spent_s * self.regret

    def order(self) -> list[int]:
        """Return the problems with an expected gain, by gain per second of measuring, largest first."""
        gain = np.where(np.isnan(self.regret), self.spent_s, self.saved_s) / self.seconds
        return [int(i) for i in np.argsort(-gain, kind="stable") if gain[i] > 0]

    def take(self, which: list[int]) -> Self:
        """Return the stakes of some problems."""
        return type(self)(*(values[which] for values in (self.calls, self.pick_ms, self.regret, self.seconds)))


@dataclass(frozen=True)
class ValueProposal:
    """The shapes and kernels to measure next, most valuable shapes first.

    Attributes:
        plan: input of `tilewise collect`.
        stakes: stakes of the planned problems, in the plan's order.
        could_be: stakes of all problems of the trace that could be measured.
        calls: calls in the trace, including those of measured and holdout problems.
    """

    plan: Plan
    stakes: Stakes
    could_be: Stakes
    calls: int


def propose_by_value(
    calls: Mapping[Problem, int],
    model: TrainedModel | None,
    frame: pd.DataFrame | None,
    whole: Plan,
    settings: PlanSettings,
    *,
    holdout_fraction: float,
) -> ValueProposal:
    """Choose shapes of a trace and their kernels to measure within the budget.

    Measured shapes and holdout shapes are left out: training must not use the latter. Kernels are chosen as for
    :func:`~tilewise.campaigns.plan.propose`; kernels that the model does not know are added.

    Args:
        calls: number of calls of each shape.
        model: the model that selects at present; None: no model.
        frame: measurements of the target so far; None: no measurements.
        whole: target, pool, hardware, timing and name of the run; its problems are not used.
        settings: all other settings.
        holdout_fraction: share of the group keys that is held out.

    Raises:
        ConfigError: `frame` already contains the run.
        DataError: no problem is left to choose from, or no gain is expected.
    """
    target, pool = whole.target, whole.pool
    asked = [Item(problem, f"asked {count} times") for problem, count in calls.items()]
    left = candidates(asked, whole, known_keys(frame, target, whole.run_id), holdout_fraction)
    problems = [item.problem for item in left]
    judged = _unjudged(problems, whole) if model is None else _judged(problems, pool, model)
    scored, rng = judged.scored, np.random.default_rng(settings.seed)
    chosen = choose_kernels(scored.problem, scored.log_tflops, settings.choice, rng) | judged.unknown
    stakes = Stakes(
        np.array([calls[p] for p in problems], dtype=np.float64),
        judged.pick_ms,
        scored.regret,
        seconds_of(problems, scored, chosen, whole.timing, whole.arch),
    )
    order = stakes.order()
    if not order:
        raise DataError(f"measuring the {len(left)} problems of the trace that could be measured saves nothing")
    picked = within_budget(order, lambda i: float(stakes.seconds[i]), settings.budget_s)
    items = items_of(picked, left, scored, chosen)
    plan = dataclasses.replace(whole, items=items)
    return ValueProposal(plan, stakes.take(picked), stakes, sum(calls.values()))


def usual_distance(keys: Ints) -> float:
    """Return the usual log2 distance of a shape to its nearest other shape; infinite for a single shape."""
    points = log_sizes(keys)
    if len(points) < 2:
        return np.inf
    nearest = [np.partition(shape_distances(point, points), 1)[1] for point in points]  # index 0 is the shape itself
    return float(np.quantile(nearest, USUAL))


def expected_regret(
    model: TrainedModel, problem: Problem, log_tflops: Floats, supported: Bools, usual: float
) -> float:  # fmt: skip
    """Return the expected loss of the selection, 0 to 1; NaN without a calibration.

    Args:
        model: the model that selects.
        problem: the problem.
        log_tflops: predictions, of shape (supported kernels,).
        supported: the supported kernels, of shape (len(pool),).
        usual: log2 shape distance beyond which the calibration does not apply.
    """
    calibration = model.calibration
    if calibration is None:
        return np.nan
    distance = calibration.shape_distance(problem)
    if distance > usual:
        return calibration.bound(len(calibration.counts) - 1, 1)
    rates = model.log_rates(problem.to_dict(), model.pool.columns)
    covariates = covariates_of(problem, log_tflops, None if rates is None else rates[supported], distance)
    number = calibration.bin_of(float(calibration.risk(covariates)))
    return float(calibration.losses[number][0].sum() / calibration.counts[number])


@dataclass(frozen=True)
class _Judged:
    """Scored pairs, the pairs with kernels unknown to the model, and the predicted time of each problem's selection."""

    scored: Scored
    unknown: Bools
    pick_ms: Floats


def _judged(problems: list[Problem], pool: Pool, model: TrainedModel) -> _Judged:
    new = ~np.isin(pool.names, model.pool.names)
    usual = usual_distance(model.calibration.keys) if model.calibration else np.inf
    kernels, scores, unknown, regret, pick_ms = [], [], [], [], []
    for problem in problems:
        can = np.flatnonzero(pool.supported(problem))
        kernel_columns = {name: column[can] for name, column in pool.columns.items()}
        of_pool = model.score_candidates(np.zeros(len(can), dtype=np.int64), problem.to_dict(), kernel_columns)
        kernels.append(can)
        scores.append(np.log(model.tflops_of_scores(problem, of_pool)))
        supported = model.supported(problem)
        if supported.any():
            log_tflops = np.log(model.predict_tflops(problem)[supported])
            regret.append(expected_regret(model, problem, log_tflops, supported, usual))
        else:  # no selection is possible yet: a dispatcher fails here
            log_tflops = scores[-1]
            regret.append(1.0)
        pick_ms.append(problem.flops / np.exp(log_tflops.max()) / 1e9)
        unknown.append(new[can])
    number = np.repeat(np.arange(len(problems)), [len(k) for k in kernels])
    scored = Scored(number, np.concatenate(kernels), np.concatenate(scores), np.array(regret))
    return _Judged(scored, np.concatenate(unknown), np.array(pick_ms))


def _unjudged(problems: list[Problem], whole: Plan) -> _Judged:
    """Return the pairs without a model: all kernels of a problem count as equally fast."""
    scored = unscored(problems, whole.pool, whole.target, whole.arch)
    first = np.flatnonzero(np.diff(scored.problem, prepend=-1))
    pick_ms = np.array([p.flops for p in problems]) / np.exp(scored.log_tflops[first]) / 1e9
    unknown = dataclasses.replace(scored, regret=np.full(len(problems), np.nan))
    return _Judged(unknown, np.zeros(len(scored.problem), dtype=bool), pick_ms)

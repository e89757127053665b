"""What to measure of what was asked for: shapes of a trace of calls, by what a second of measuring them saves.

A shape that is called often, takes long, and whose selection is not to be trusted comes first: measuring it is expected
to save ``calls x time of the selection x expected regret``. The regret is what rankings of like risk lost in
calibration, on average (:mod:`tilewise.model.trust`). That holds for shapes like those of the calibration; one that
lies farther from all of them than they do from each other counts as the worst tenth of the riskiest. Without a model or
a calibration nobody knows, and all shapes are equally risky.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

import numpy as np
import pandas as pd

from tilewise.collect.plan import Item, Plan
from tilewise.errors import DataError
from tilewise.features.octaves import distances, log_sizes
from tilewise.kernels.pool import Pool
from tilewise.metrics import Floats, Ints
from tilewise.model.trained import TrainedModel
from tilewise.model.trust import covariates_of
from tilewise.ops import Problem
from tilewise.planning.choice import Bools, choose_kernels, within_budget
from tilewise.planning.propose import PlanSettings, Scored, candidates, items_of, known_keys, seconds_of, unscored

USUAL = 0.9  # share of the known shapes that have another one within the distance that is usual


@dataclass(frozen=True)
class Stakes:
    """What measuring some shapes may save, and what it takes.

    Attributes:
        calls: (problems,) in the trace.
        pick_ms: (problems,) predicted of what is selected now.
        regret: (problems,) expected share of it that the fastest kernel does without; NaN where nobody knows.
        seconds: (problems,) expected of measuring.
    """

    calls: Floats
    pick_ms: Floats
    regret: Floats
    seconds: Floats

    @property
    def spent_s(self) -> Floats:
        """(problems,) GPU seconds that the traced calls take."""
        return self.calls * self.pick_ms / 1e3

    @property
    def saved_s(self) -> Floats:
        """(problems,) GPU seconds that the fastest kernels would save the traced calls; NaN where nobody knows."""
        return self.spent_s * self.regret

    def order(self) -> list[int]:
        """The problems from which anything is expected, the best gain per second of measuring first."""
        gain = np.where(np.isnan(self.regret), self.spent_s, self.saved_s) / self.seconds
        return [int(i) for i in np.argsort(-gain, kind="stable") if gain[i] > 0]

    def take(self, which: list[int]) -> Self:
        """Those of some problems."""
        return type(self)(*(values[which] for values in (self.calls, self.pick_ms, self.regret, self.seconds)))


@dataclass(frozen=True)
class ValueProposal:
    """What to measure next, the most valuable first.

    Attributes:
        plan: for `tilewise collect`.
        stakes: of its problems, in its order.
        could_be: of all problems of the trace that could be measured.
        calls: in the trace, those of problems that are measured or of the holdout included.
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
    """Choose shapes of a trace, and which of their kernels to measure, within the budget.

    Shapes that were measured stay out, and those of the holdout: they judge, and nobody learns from them. Kernels are
    chosen as for :func:`~tilewise.planning.propose.propose`, and besides those that the model does not know.

    Args:
        calls: how often each shape was asked for.
        model: selects for them now; None: there is none.
        frame: measurements of the target so far; None: there are none.
        whole: target, pool, hardware, timing and name of the run; of its problems nothing is asked.
        settings: everything else.
        holdout_fraction: of the problems, by hash.

    Raises:
        ConfigError: the run is in `frame` already.
        DataError: nothing is left to choose from, or nothing is expected of what is left.
    """
    target, pool = whole.target, whole.pool
    asked = [Item(problem, f"asked {count} times") for problem, count in calls.items()]
    left = candidates(asked, target, pool, known_keys(frame, target, whole.run_id), holdout_fraction)
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
        raise DataError(f"nothing is expected of measuring the {len(left)} problems of the trace that could be")
    picked = within_budget(order, lambda i: float(stakes.seconds[i]), settings.budget_s)
    items = items_of(picked, left, scored, chosen)
    plan = dataclasses.replace(whole, items=items)
    return ValueProposal(plan, stakes.take(picked), stakes, sum(calls.values()))


def usual_octaves(keys: Ints) -> float:
    """How far a shape usually lies from the nearest other one, in octaves; infinite for one alone."""
    points = log_sizes(keys)
    if len(points) < 2:
        return np.inf
    nearest = [np.partition(distances(point, points), 1)[1] for point in points]  # 0 is the shape itself
    return float(np.quantile(nearest, USUAL))


def expected_regret(
    model: TrainedModel, problem: Problem, log_tflops: Floats, supported: Bools, usual: float
) -> float:  # fmt: skip
    """What the selection is expected to lose, 0 to 1; NaN without a calibration.

    Args:
        model: selects.
        problem: what for.
        log_tflops: (supported kernels,) predicted.
        supported: (len(pool),) which those are.
        usual: distance in octaves beyond which the calibration says nothing of a shape.
    """
    known = model.calibration
    if known is None:
        return np.nan
    octaves = known.octaves(problem)
    if octaves > usual:
        return known.bound(len(known.counts) - 1, 1)
    rates = model.log_rates(problem.to_dict(), model.pool.columns)
    covariates = covariates_of(problem, log_tflops, None if rates is None else rates[supported], octaves)
    number = known.bin_of(float(known.risk(covariates)))
    return float(known.losses[number][0].sum() / known.counts[number])


@dataclass(frozen=True)
class _Judged:
    """Pairs, which of them are measured whatever their score, and the predicted time of each problem's selection."""

    scored: Scored
    unknown: Bools
    pick_ms: Floats


def _judged(problems: list[Problem], pool: Pool, model: TrainedModel) -> _Judged:
    new = ~np.isin(pool.names, model.pool.names)
    usual = usual_octaves(model.calibration.keys) if model.calibration else np.inf
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
        else:  # nothing can be selected yet: a dispatcher fails here
            log_tflops = scores[-1]
            regret.append(1.0)
        pick_ms.append(problem.flops / np.exp(log_tflops.max()) / 1e9)
        unknown.append(new[can])
    number = np.repeat(np.arange(len(problems)), [len(k) for k in kernels])
    scored = Scored(number, np.concatenate(kernels), np.concatenate(scores), np.array(regret))
    return _Judged(scored, np.concatenate(unknown), np.array(pick_ms))


def _unjudged(problems: list[Problem], whole: Plan) -> _Judged:
    """Without a model: every kernel is as good as the others."""
    scored = unscored(problems, whole.pool, whole.target, whole.arch)
    first = np.flatnonzero(np.diff(scored.problem, prepend=-1))
    pick_ms = np.array([p.flops for p in problems]) / np.exp(scored.log_tflops[first]) / 1e9
    nobody_knows = dataclasses.replace(scored, regret=np.full(len(problems), np.nan))
    return _Judged(nobody_knows, np.zeros(len(scored.problem), dtype=bool), pick_ms)

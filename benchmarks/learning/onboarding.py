"""Onboarding of a target: efficiency by number of measured problems, alone and with another target's model.

The source target's model, its cost model and trees, scores the new target's pairs; features are defined for all
variants, dtypes and architectures of an op. Measurements of the new target correct it: a mean per kernel, drawn towards
the mean over all kernels, and trees on the residuals. So 0 measured problems still give a ranking.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from benchmarks.learning.replay import Replay, recorded_pairs, selections
from tilewise.campaigns.plan import COMMITTEE_SETTINGS, Member, Pairs, supported_pairs
from tilewise.metrics import Floats, Ints
from tilewise.train import MOST_RESIDUAL, Bins, Fit, Labels, Table

PRIOR_ROWS = 5.0  # weight of the mean over all kernels in a kernel's own mean


@dataclass(frozen=True)
class OnboardingPoint:
    """Efficiencies in (0, 1] on held-back problems; `method` is ``alone`` or ``taught``."""

    method: str
    seed: int
    problems: int
    measurements: int
    mean_efficiency: float
    p10_efficiency: float


def onboard(table: Table, source: Table, counts: Sequence[int], seed: int, threads: int) -> Iterator[OnboardingPoint]:
    """Yield the points of both curves, over random problems of `table` with their whole pool.

    Args:
        table: recorded table of the new target.
        source: recorded table of the source target; shapes of judging problems are left out of it.
        counts: numbers of measured problems; 0 for ``taught`` only.
        seed: seed of the split, the choice and the trees.
        threads: threads of the trees.
    """
    replay = Replay.split(table, seed, threads=threads)
    order = np.random.default_rng([seed, 4]).permutation(np.flatnonzero(~replay.judges))
    unseen = source.take(source.rows_of(_apart(source, table, replay)))
    taught = base_scores(Member.fit(unseen, COMMITTEE_SETTINGS, seed, threads), source, table, threads)
    judged = table.rows_of(np.flatnonzero(replay.judges))
    for count in (c for c in counts if c <= len(order)):
        rows = table.rows_of(order[:count])
        if count:
            alone = Member.fit(table.take(rows), COMMITTEE_SETTINGS, seed, threads)
            yield _judge("alone", table, rows, judged, alone.score(recorded_pairs(table, judged), threads), seed)
        corrected = taught[judged] + (_correction(table, rows, judged, taught, seed, threads) if count else 0.0)
        yield _judge("taught", table, rows, judged, corrected, seed)


def _apart(source: Table, table: Table, replay: Replay) -> Ints:
    """Return the source's problems that share no group key with a judging problem."""
    judges = {p.group_key for p, judge in zip(table.problems, replay.judges, strict=True) if judge}
    return np.flatnonzero([p.group_key not in judges for p in source.problems])


def base_scores(base: Member, source: Table, table: Table, threads: int) -> Floats:
    """Return log(TFLOPS) of another target's table by the source's model, of shape (rows,)."""
    place = {kernel: i for i, kernel in enumerate(source.pool.kernels)}
    known = np.array([place.get(kernel, -1) for kernel in table.pool.kernels])
    scores = np.full((len(table.problems), len(table.pool)), np.nan)
    for pairs in supported_pairs(table.problems, table.pool, table.target, table.arch, source.features):
        seen: Pairs = replace(pairs, kernel=known[pairs.kernel])
        scores[pairs.problem, pairs.kernel] = base.score(seen, threads)
    return cast(Floats, scores[table.problem, table.kernel])


def _correction(table: Table, rows: Ints, judged: Ints, taught: Floats, seed: int, threads: int) -> Floats:
    """Return the correction of the judged rows that the measured rows suggest, of shape (judged,)."""
    missed = (np.log(table.tflops) - taught)[rows]
    kernel, weight = table.kernel[rows], table.efficiency[rows] ** COMMITTEE_SETTINGS.top_weight
    overall = float(np.average(missed, weights=weight))
    clipped = np.clip(missed, overall - MOST_RESIDUAL, overall + MOST_RESIDUAL)
    total, count = (np.bincount(kernel, w, minlength=len(table.pool)) for w in (weight * clipped, weight))
    mean = (total + PRIOR_ROWS * overall) / (count + PRIOR_ROWS)
    left = np.clip(missed - mean[kernel], -MOST_RESIDUAL, MOST_RESIDUAL)
    bins = Bins(table.matrix[rows], table.features.names, COMMITTEE_SETTINGS.max_bin, threads)
    trees = bins.fit(COMMITTEE_SETTINGS, Labels(left, weight), Fit(seed, threads))
    return cast(Floats, mean[table.kernel[judged]] + trees.predict(table.matrix[judged], num_threads=threads))


def _judge(method: str, table: Table, rows: Ints, judged: Ints, score: Floats, seed: int) -> OnboardingPoint:
    efficiency = selections(table, judged, score).efficiency
    problems = len(np.unique(table.problem[rows]))
    return OnboardingPoint(
        method, seed, problems, len(rows), float(efficiency.mean()), float(np.percentile(efficiency, 10))
    )

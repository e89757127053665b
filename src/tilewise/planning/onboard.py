"""Onboarding a target: how many of its problems must be measured, alone and with what another target taught.

What is taught is the source's model: its calibrated estimate and trees score the new target's pairs (features are
defined for every op's variant, dtype and arch). Measurements of the target then correct it: a mean for every kernel,
drawn towards the mean over all, and trees on what is left. So nothing measured (0 problems) still ranks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from tilewise.metrics import Floats, Ints
from tilewise.planning.committee import SETTINGS, Member
from tilewise.planning.pairs import Pairs, recorded_pairs, supported_pairs
from tilewise.planning.replay import Replay, selections
from tilewise.train.boosting import Bins
from tilewise.train.dataset import Table
from tilewise.train.labels import Labels
from tilewise.train.ranking import MOST_RESIDUAL

PRIOR_ROWS = 5.0  # that the mean over all kernels counts for in a kernel's own


@dataclass(frozen=True)
class OnboardingPoint:
    """Efficiencies in (0, 1], on problems that nothing was learnt from; `method` is ``alone`` or ``taught``."""

    method: str
    seed: int
    problems: int
    measurements: int
    mean_efficiency: float
    p10_efficiency: float


def onboard(table: Table, source: Table, counts: Sequence[int], seed: int, threads: int) -> Iterator[OnboardingPoint]:
    """Both curves, over random problems of `table` with their whole pool.

    Args:
        table: of the new target.
        source: of the target that teaches; it is learnt from, but for the shapes that judge.
        counts: of problems that are measured; 0 is for the taught alone.
        seed: of the split, the choice and the trees.
        threads: of the trees.
    """
    replay = Replay.split(table, seed, threads=threads)
    order = np.random.default_rng([seed, 4]).permutation(np.flatnonzero(~replay.judges))
    unseen = source.take(source.rows_of(_apart(source, table, replay)))
    taught = base_scores(Member.fit(unseen, SETTINGS, seed, threads), source, table, threads)
    judged = table.rows_of(np.flatnonzero(replay.judges))
    for count in (c for c in counts if c <= len(order)):
        rows = table.rows_of(order[:count])
        if count:
            alone = Member.fit(table.take(rows), SETTINGS, seed, threads)
            yield _judge("alone", table, rows, judged, alone.score(recorded_pairs(table, judged), threads), seed)
        corrected = taught[judged] + (_correction(table, rows, judged, taught, seed, threads) if count else 0.0)
        yield _judge("taught", table, rows, judged, corrected, seed)


def _apart(source: Table, table: Table, replay: Replay) -> Ints:
    """Problems of the source whose shape judges in no other type or variant."""
    judges = {p.group_key for p, judge in zip(table.problems, replay.judges, strict=True) if judge}
    return np.flatnonzero([p.group_key not in judges for p in source.problems])


def base_scores(base: Member, source: Table, table: Table, threads: int) -> Floats:
    """(rows,) log(TFLOPS) of another target's table by the source's model."""
    place = {kernel: i for i, kernel in enumerate(source.pool.kernels)}
    known = np.array([place.get(kernel, -1) for kernel in table.pool.kernels])
    scores = np.full((len(table.problems), len(table.pool)), np.nan)
    for pairs in supported_pairs(table.problems, table.pool, table.target, table.arch, source.features):
        seen: Pairs = replace(pairs, kernel=known[pairs.kernel])
        scores[pairs.problem, pairs.kernel] = base.score(seen, threads)
    return cast(Floats, scores[table.problem, table.kernel])


def _correction(table: Table, rows: Ints, judged: Ints, taught: Floats, seed: int, threads: int) -> Floats:
    """(judged,) what measurements say that the base misses."""
    missed = (np.log(table.tflops) - taught)[rows]
    kernel, weight = table.kernel[rows], table.efficiency[rows] ** SETTINGS.top_weight
    overall = float(np.average(missed, weights=weight))
    clipped = np.clip(missed, overall - MOST_RESIDUAL, overall + MOST_RESIDUAL)
    total, count = (np.bincount(kernel, w, minlength=len(table.pool)) for w in (weight * clipped, weight))
    mean = (total + PRIOR_ROWS * overall) / (count + PRIOR_ROWS)
    left = np.clip(missed - mean[kernel], -MOST_RESIDUAL, MOST_RESIDUAL)
    bins = Bins(table.matrix[rows], table.features.names, SETTINGS.max_bin, threads)
    trees = bins.fit(SETTINGS, Labels(left, weight), seed, threads)
    return cast(Floats, mean[table.kernel[judged]] + trees.predict(table.matrix[judged], num_threads=threads))


def _judge(method: str, table: Table, rows: Ints, judged: Ints, score: Floats, seed: int) -> OnboardingPoint:
    efficiency = selections(table, judged, score).efficiency
    problems = len(np.unique(table.problem[rows]))
    return OnboardingPoint(
        method, seed, problems, len(rows), float(efficiency.mean()), float(np.percentile(efficiency, 10))
    )

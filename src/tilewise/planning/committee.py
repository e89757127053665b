"""A few small models that each saw other problems: where they disagree, none of them knows.

Labels are ``residual``: what a calibrated estimate leaves of a kernel's own rate. They need no oracle, so a problem of
which only some kernels were measured teaches as much as one of which all were, row for row.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, Self, cast

import numpy as np

from tilewise.features.estimate import LaunchEstimate
from tilewise.metrics import Floats, Ints
from tilewise.planning.pairs import Pairs
from tilewise.train.baseline import Baselines
from tilewise.train.boosting import Bins
from tilewise.train.dataset import Table
from tilewise.train.labels import labels
from tilewise.train.settings import ModelSettings

SHARE = 0.7  # of the groups, that each member learns from
# Small and quick: a committee ranks what to measure, it does not select what to launch.
SETTINGS = ModelSettings(label="residual", n_estimators=100, learning_rate=0.15, num_leaves=63)


@dataclass(frozen=True)
class Member:
    """One model: a calibrated estimate, and trees on what it leaves."""

    estimate: LaunchEstimate
    booster: Any

    @classmethod
    def fit(cls, table: Table, settings: ModelSettings, seed: int, threads: int) -> Self:
        """Learn from all rows of a table."""
        baselines = Baselines(table, settings, seed)
        baseline = baselines.of_all()
        learnt = labels(table, settings, baseline.scores)
        bins = Bins(table.matrix, table.features.names, settings.max_bin, threads)
        assert baseline.estimate is not None
        return cls(baseline.estimate, bins.fit(settings, learnt, seed, threads))

    def score(self, pairs: Pairs, threads: int) -> Floats:
        """(rows,) log(TFLOPS)."""
        rate = pairs.log_work - self.estimate.log_clocks(pairs.terms, pairs.kernel)
        return cast(Floats, rate + self.booster.predict(pairs.matrix, num_threads=threads))


@dataclass(frozen=True)
class Committee:
    """Members that learnt from different problems."""

    members: tuple[Member, ...]
    threads: int

    @classmethod
    def fit(cls, table: Table, count: int, seed: int, threads: int, settings: ModelSettings = SETTINGS) -> Self:
        """`count` members on :data:`SHARE` of the groups each; one alone learns from all of them."""
        settings = dataclasses.replace(settings, label="residual", hard_weight=0.0)
        groups = int(table.group.max()) + 1
        rng = np.random.default_rng([seed, groups])
        members = []
        for number in range(count):
            kept = np.zeros(groups, dtype=bool)
            kept[rng.permutation(groups)[: max(1, round(SHARE * groups)) if count > 1 else groups]] = True
            some = table.take(np.flatnonzero(kept[table.group][table.problem]))
            members.append(Member.fit(some, settings, seed + number, threads))
        return cls(tuple(members), threads)

    def score(self, pairs: Pairs) -> Floats:
        """(members, rows) log(TFLOPS)."""
        return np.stack([m.score(pairs, self.threads) for m in self.members])


def disagreement(problem: Ints, scores: Floats) -> Floats:
    """(problems,) what the members expect to lose, on average, by selecting together: a logarithm of TFLOPS, 0 or more.

    Args:
        problem: (rows,) problem of each row, ascending, numbered from 0 without gaps.
        scores: (members, rows) log(TFLOPS).
    """
    mean = scores.mean(axis=0)
    starts = np.flatnonzero(np.diff(problem, prepend=-1))
    together = np.lexsort((-mean, problem))[starts]
    return cast(Floats, (np.maximum.reduceat(scores, starts, axis=1) - scores[:, together]).mean(axis=0))

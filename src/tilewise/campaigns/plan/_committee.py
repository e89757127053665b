"""A committee: a few small models trained on different problems, whose disagreement shows their uncertainty.

They learn the label ``residual``, the deviation of a kernel's rate from the cost model. It needs no oracle, so a
problem with a few measured kernels teaches as much per row as a problem with all of them.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Self, cast

import lightgbm as lgb
import numpy as np

from tilewise.campaigns.plan._pairs import Pairs
from tilewise.cluster import LOCAL, Executor
from tilewise.features import CostModel
from tilewise.metrics import Floats, Ints
from tilewise.train import ModelSettings, Table, TrainingData, TrainSettings, make_labels

SHARE = 0.7  # of the groups that each member trains on
# Small and quick: a committee ranks candidates for measuring, it selects no kernel for a launch.
COMMITTEE_SETTINGS = ModelSettings(label="residual", n_estimators=100, learning_rate=0.15, num_leaves=63)


@dataclass(frozen=True)
class Member:
    """One model: a calibrated cost model, and trees that correct it."""

    cost_model: CostModel
    booster: lgb.Booster

    @classmethod
    def fit(cls, table: Table, settings: ModelSettings, seed: int, threads: int) -> Self:
        """Train on all rows of a table."""
        data = TrainingData.prepare(table, TrainSettings(settings, seed=seed, threads=threads))
        baseline = data.baselines.of_all()
        labels = make_labels(table, settings, baseline.scores)
        assert baseline.cost_model is not None
        return cls(baseline.cost_model, data.bins.fit(settings, labels, data.fit))

    def score(self, pairs: Pairs, threads: int) -> Floats:
        """Return predicted log(TFLOPS), of shape (rows,)."""
        rate = pairs.log_work - self.cost_model.log_clocks(pairs.terms, pairs.kernel)
        return cast(Floats, rate + self.booster.predict(pairs.matrix, num_threads=threads))


@dataclass(frozen=True)
class Committee:
    """Members trained on different problems."""

    members: tuple[Member, ...]
    threads: int

    @classmethod
    def fit(
        cls,
        table: Table,
        count: int,
        seed: int,
        threads: int,
        settings: ModelSettings = COMMITTEE_SETTINGS,
        executor: Executor = LOCAL,
    ) -> Self:
        """Train `count` members on :data:`SHARE` of the groups each; a single member trains on all of them."""
        settings = dataclasses.replace(settings, label="residual", hard_weight=0.0)
        groups = int(table.group.max()) + 1
        rng = np.random.default_rng([seed, groups])
        share = max(1, round(SHARE * groups)) if count > 1 else groups
        tasks = [(rng.permutation(groups)[:share], seed + number) for number in range(count)]
        return cls(tuple(executor.map(_fit_member, (table, settings, threads), tasks)), threads)

    def score(self, pairs: Pairs) -> Floats:
        """Return predicted log(TFLOPS), of shape (members, rows)."""
        return np.stack([m.score(pairs, self.threads) for m in self.members])


def _fit_member(shared: tuple[Table, ModelSettings, int], task: tuple[Ints, int]) -> Member:
    (table, settings, threads), (groups, seed) = shared, task
    rows = np.flatnonzero(np.isin(table.group, groups)[table.problem])
    return Member.fit(table.take(rows), settings, seed, threads)


def disagreement(problem: Ints, scores: Floats) -> Floats:
    """Return the mean loss that members expect from a joint selection, as log(TFLOPS), of shape (problems,); 0 or more.

    Args:
        problem: number of each row's problem, ascending, from 0 without gaps, of shape (rows,).
        scores: log(TFLOPS), of shape (members, rows).
    """
    mean = scores.mean(axis=0)
    starts = np.flatnonzero(np.diff(problem, prepend=-1))
    together = np.lexsort((-mean, problem))[starts]
    return cast(Floats, (np.maximum.reduceat(scores, starts, axis=1) - scores[:, together]).mean(axis=0))

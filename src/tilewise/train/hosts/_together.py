"""One model learnt by several processes together: each has some of the problems, and they exchange histograms.

LightGBM's own network does the exchange. Each process holds whole problems, so the groups of a ranking stay whole, and
all tested rows, so that all take the same decision to stop. Trees differ a little from those of one process, because
bins and sums are those of other parts.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

import lightgbm as lgb
import numpy as np

from tilewise.cluster import Executor, Peers
from tilewise.features import FeatureRows, Launches
from tilewise.metrics import Numbers, select
from tilewise.train._boosting import Bins, Fit, Growth, model_text
from tilewise.train._dataset import Floats, Ints, Table, renumbered
from tilewise.train._ranking import Params
from tilewise.train._settings import ModelSettings
from tilewise.train._training_labels import Labels

_LOST_MINUTES = 2  # without an answer of a peer


def _no_rows() -> Ints:
    return np.zeros(0, dtype=np.int64)


@dataclass(frozen=True)
class Learning:
    """A model to learn.

    Attributes:
        table: the training table.
        settings, fit: of the trees.
        labels: of all rows; those of a continued model start from its scores.
        train: ascending rows to learn from.
        test: ascending rows to score while the trees grow.
    """

    table: Table
    settings: ModelSettings
    fit: Fit
    labels: Labels
    train: Ints
    test: Ints = field(default_factory=_no_rows)


@dataclass(frozen=True)
class Stop:
    """The rule that ends growing early: so many trees without a better selection on the test rows.

    Attributes:
        patience: number of trees; 0: never.
        baseline: scores of the test rows that the trees are added to, of shape (test rows,).
    """

    patience: int
    baseline: Floats


def fit_model(executor: Executor, bins: Bins, learning: Learning) -> lgb.Booster:
    """Return the booster, learnt in this process from `bins`, or in `executor.machines` processes together."""
    if executor.machines == 1:
        return bins.fit(learning.settings, learning.labels, learning.fit, learning.train)
    return lgb.Booster(model_str=_learn(executor, learning, learning.settings.n_estimators, None)[1])


def grow_model(
    executor: Executor, bins: Bins, learning: Learning, *, every: int, stop: Stop | None = None
) -> Iterator[Growth]:
    """Yield the scores of the test rows after each `every` trees and after the last.

    One process yields them while the trees grow; several learn the whole model first.

    Raises:
        ConfigError: there are fewer worker processes than `executor.machines`.
        TilewiseError: workers were lost again and again.
    """
    if executor.machines == 1:
        grown: Iterable[Growth] = bins.grow(
            learning.settings, learning.labels, learning.train, learning.test, learning.fit, every=every
        )
        yield from _stopped(grown, _Tested.of(learning, stop))
        return
    steps, text = _learn(executor, learning, every, stop)
    booster = lgb.Booster(model_str=text)
    yield from (Growth(n_trees, scores, booster) for n_trees, scores in steps)


@dataclass(frozen=True)
class _Tested:
    """Measurements of the test rows, and the rule to stop by them; arrays of shape (test rows,)."""

    problem: Ints
    tflops: Floats
    stop: Stop | None

    @classmethod
    def of(cls, learning: Learning, stop: Stop | None) -> _Tested:
        """Return those of a model to learn."""
        table, test = learning.table, learning.test
        return cls(renumbered(table.problem[test]), table.tflops[test], stop)


def _stopped(grown: Iterable[Growth], tested: _Tested) -> Iterator[Growth]:
    """Yield growth until the rule ends it."""
    best, best_at, stop = -np.inf, 0, tested.stop
    for growth in grown:
        yield growth
        if stop is None:
            continue
        efficiency = float(select(tested.problem, tested.tflops, stop.baseline + growth.scores).efficiency.mean())
        if efficiency > best:
            best, best_at = efficiency, growth.n_trees
        if 0 < stop.patience <= growth.n_trees - best_at:
            break


@dataclass(frozen=True)
class _Part:
    """Rows of one process: `n_train` rows to learn from, then all test rows."""

    features: FeatureRows
    labels: Labels
    n_train: int


@dataclass(frozen=True)
class _Job:
    """Input of all processes."""

    names: tuple[str, ...]
    settings: ModelSettings
    fit: Fit
    every: int
    tested: _Tested


_Steps = list[tuple[int, Floats]]


def _learn(executor: Executor, learning: Learning, every: int, stop: Stop | None) -> tuple[_Steps, str]:
    """Learn in several processes; return the test rows' scores by number of trees, and the model's text."""
    names = learning.table.features.names
    job = _Job(names, learning.settings, learning.fit, every, _Tested.of(learning, stop))
    shares = shares_of(learning.table.problem[learning.train], executor.machines)
    parts = [_part(replace(learning, train=learning.train[share])) for share in shares]
    return executor.together(_learn_here, job, parts)[0]


def shares_of(problem: Numbers, count: int) -> list[Ints]:
    """Return `count` sets of ascending rows, with whole problems and about as many problems each.

    Args:
        problem: number of each row's problem, ascending, of shape (rows,).
        count: number of sets; no more than there are problems.
    """
    number = renumbered(problem)
    # Neighbouring problems are alike, so each set takes every count-th of them: no set lacks a kind of problem.
    return [np.flatnonzero(number % count == i) for i in range(count)]


def _part(learning: Learning) -> _Part:
    table, train, test = learning.table, learning.train, learning.test
    launches = Launches.joined([table.launches.take(train), table.launches.take(test)])
    labels = learning.labels.take(np.concatenate([train, test]))
    return _Part(FeatureRows(launches, table.features), labels, len(train))


def _learn_here(job: _Job, part: _Part, peers: Peers, number: int) -> tuple[_Steps, str]:
    """Learn in this process and its peers; only the first of them returns the model, which is that of all."""
    rows = np.arange(len(part.features))
    train, test = rows[: part.n_train], rows[part.n_train :]
    with _network(peers, number) as network:
        bins = Bins(part.features, job.names, job.settings.max_bin, job.fit.threads, network)
        if not len(test):
            return [], model_text(bins.fit(job.settings, part.labels, job.fit, train))
        grown = bins.grow(job.settings, part.labels, train, test, job.fit, every=job.every)
        steps = list(_stopped(grown, job.tested))
        text = model_text(steps[-1].booster) if number == 0 else ""
    return [(step.n_trees, step.scores) for step in steps], text


@contextmanager
def _network(peers: Sequence[str], number: int) -> Iterator[Params]:
    """Connect this process with its peers, and yield LightGBM's parameters for learning together."""
    if len(peers) < 2:
        yield {}
        return
    # Bins are agreed upon as well, so the network must exist before the booster whose rows are cut into them.
    rows = lgb.Dataset(np.zeros((2, 1)), label=[0, 1], params={"verbosity": -1})
    booster = lgb.Booster({"verbosity": -1}, rows)
    port = int(peers[number].rpartition(":")[2])
    booster.set_network(list(peers), port, _LOST_MINUTES, len(peers))
    try:
        yield {"tree_learner": "data", "num_machines": len(peers), "pre_partition": True}
    finally:
        booster.free_network()

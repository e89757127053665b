"""Learning curves on synthetic tables: strategies, held-back problems, and onboarding from another target."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from benchmarks.learning import learning_curve
from benchmarks.learning.onboarding import onboard
from benchmarks.learning.replay import ROUNDS, Point, Replay, recorded_pairs
from benchmarks.results import RESULTS

from synthetic import CONV, measurements
from tilewise.arch import load_arch
from tilewise.campaigns.plan import Committee, KernelChoice, Member, supported_pairs
from tilewise.errors import DataError
from tilewise.ops import Target
from tilewise.train import ModelSettings, Table, build_table, pool_of

SMALL = ModelSettings(label="residual", n_estimators=15, learning_rate=0.2, num_leaves=7, min_child_samples=5)


def _table(name: str = CONV, seed: int = 0) -> Table:
    target = Target.parse(name)
    frame = measurements(target, n_problems=40, n_kernels=12, seed=seed, failures=0)
    return build_table(frame, target, pool_of(frame, target), load_arch(target.arch), 0.0)


@pytest.fixture(scope="module")
def table() -> Table:
    return _table()


@pytest.fixture(scope="module")
def replay(table: Table) -> Replay:
    return Replay.split(table, 0, model=SMALL, members=2, threads=1)


def test_some_rows_of_a_table_are_as_if_no_other_had_been_measured(table: Table) -> None:
    frame = measurements(CONV, n_problems=40, n_kernels=12, seed=0, failures=0)
    few = frame[frame["N"] == frame["N"].iloc[0]]
    same = build_table(few, table.target, table.pool, table.arch, 0.0, table.features)
    kept = np.flatnonzero([table.problems[p] in same.problems for p in table.problem])
    taken = table.take(kept)
    assert taken.problems == same.problems
    for name in ("group", "problem", "kernel", "matrix", "tflops", "log_work", "spread"):
        np.testing.assert_array_equal(getattr(taken, name), getattr(same, name))
    np.testing.assert_array_equal(taken.best, same.best)


def test_pairs_of_a_table_are_those_of_its_problems(table: Table) -> None:
    everything = recorded_pairs(table, np.arange(len(table.problem)))
    parts = list(supported_pairs(table.problems, table.pool, table.target, table.arch, table.features))
    for name in ("problem", "kernel", "matrix", "log_work"):
        np.testing.assert_array_equal(np.concatenate([getattr(p, name) for p in parts]), getattr(everything, name))


@pytest.mark.long
def test_a_committee_repeats_and_its_members_differ(table: Table) -> None:
    pairs = recorded_pairs(table, np.arange(60))
    first = Committee.fit(table, 2, 5, 1, SMALL).score(pairs)
    np.testing.assert_array_equal(Committee.fit(table, 2, 5, 1, SMALL).score(pairs), first)
    assert np.abs(first[0] - first[1]).max() > 0
    alone = Committee.fit(table, 1, 5, 1, SMALL).score(pairs)[0]
    np.testing.assert_array_equal(alone, Member.fit(table, SMALL, 5, 1).score(pairs, 1))


def test_planned_rounds_measure_what_they_say_and_no_judge(replay: Replay, monkeypatch: pytest.MonkeyPatch) -> None:
    measured: list[np.ndarray] = []
    judge = Replay._judge

    def noted(self: Replay, strategy: str, rows: np.ndarray) -> Point:
        measured.append(rows)
        return judge(self, strategy, rows)

    monkeypatch.setattr(Replay, "_judge", noted)
    points = list(replay.planned(choice=KernelChoice()))
    assert len(points) == len(ROUNDS)
    for before, after in itertools.pairwise(measured):
        assert len(np.unique(after)) == len(after)
        assert set(before) < set(after)
    last = measured[-1]
    assert not replay.judges[replay.table.problem[last]].any()
    assert set(replay.table.problem[last]) == set(np.flatnonzero(~replay.judges))
    assert points[-1].share == len(last) / len(replay.measurable)
    assert points[-1].problems == (~replay.judges).sum()


def test_random_and_uniform_end_with_everything(replay: Replay) -> None:
    ends = [list(curve)[-1] for curve in (replay.random((0.3, 1.0)), replay.uniform((0.3, 1.0)))]
    assert [p.share for p in ends] == [1.0, 1.0]
    assert ends[0].p10_efficiency == ends[1].p10_efficiency


def test_too_few_problems_are_refused(table: Table) -> None:
    with pytest.raises(DataError, match="2 problems are too few for a learning curve"):
        Replay.split(table.take(table.rows_of(np.array([0, 1]))), 0)


@pytest.mark.long
def test_a_twin_teaches_what_it_knows(table: Table) -> None:
    points = {(p.method, p.problems): p for p in onboard(table, _table(seed=1), (0, 4), 0, 1)}
    assert set(points) == {("taught", 0), ("alone", 4), ("taught", 4)}
    assert points["taught", 4].measurements == points["alone", 4].measurements > 0
    assert points["taught", 0].mean_efficiency > points["alone", 4].mean_efficiency


def test_the_page_shows_the_results() -> None:
    page = learning_curve.PAGE.read_text()
    assert learning_curve.page(page, RESULTS) == page

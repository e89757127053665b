"""Calibration recovers known costs, and no training row affects its own baseline."""

from __future__ import annotations

import dataclasses
import pickle
from threading import Event

import numpy as np
import numpy.typing as npt
import pytest

from tilewise.features import Terms
from tilewise.train import ModelSettings, Table, make_folds
from tilewise.train.cost_model import Baselines, _baseline, calibrate

SETTINGS = ModelSettings(label="residual")


def test_sums_of_costs_and_factors_of_kernels_are_found() -> None:
    rng = np.random.default_rng(0)
    n, kernels = 4000, 5
    costs, kernel = np.exp(rng.normal(7, 1, (n, 3))), rng.integers(0, kernels, n)
    program, slow = rng.integers(0, 2, n) * 7, np.array([1.0, 1.3, 0.8, 1.1, 1.0])
    factors = np.array([[2.0, 0.0, 1.0], [0.5, 3.0, 1.0]])[program // 7]
    clocks = (costs * factors).sum(axis=1) * slow[kernel]
    terms = Terms(costs, rng.normal(size=(n, 2)), program)
    found = calibrate(terms, kernel, np.log(clocks), np.ones(n), kernels)
    assert found.programs.tolist() == [0, 7]
    assert np.abs(found.log_clocks(terms, kernel) - np.log(clocks)).mean() < 0.02
    assert (found.factors >= 0).all()


def test_rows_without_weight_have_no_say() -> None:
    rng = np.random.default_rng(1)
    costs = np.exp(rng.normal(7, 1, (200, 2)))
    terms = Terms(costs, rng.normal(size=(200, 1)), np.zeros(200, dtype=np.int64))
    kernel, log_clocks = np.zeros(200, dtype=np.int64), np.log(costs.sum(axis=1))
    weight = (np.arange(200) % 2).astype(float)
    wild = np.where(weight > 0, log_clocks, 99.0)
    one, other = (calibrate(terms, kernel, y, weight, 1) for y in (log_clocks, wild))
    assert one.weights.tobytes() == other.weights.tobytes()
    assert one.factors.tobytes() == other.factors.tobytes()


def test_the_order_of_the_sums_does_not_matter(table: Table) -> None:
    weight = np.where(table.efficiency > 0.1, table.efficiency, 0.0)
    log_clocks, n = table.log_work - np.log(table.tflops), len(table.pool)
    one = calibrate(table.terms, table.kernel, log_clocks, weight, n)
    for seed in range(6):
        other = np.random.default_rng(seed).permutation(len(weight))
        two = calibrate(table.terms.take(other), table.kernel[other], log_clocks[other], weight[other], n)
        assert one.factors.tobytes() == two.factors.tobytes()
        assert np.abs(one.weights - two.weights).max() < 1e-3  # centre and scale are sums in the order given
        assert np.allclose(one.centre, two.centre)


def test_the_estimate_is_close_to_what_is_measured(table: Table) -> None:
    problems = np.arange(len(table.problems))
    cost_model = Baselines(table, SETTINGS, 0).of_all().cost_model
    assert cost_model is not None
    error = table.log_work - cost_model.log_clocks(table.terms, table.kernel) - np.log(table.tflops)
    assert np.abs(error[table.efficiency > 0.5]).mean() < 0.1
    cross = Baselines(table, SETTINGS, 0).of(problems).scores - np.log(table.tflops)
    assert np.abs(cross[table.efficiency > 0.5]).mean() > np.abs(error[table.efficiency > 0.5]).mean()


def test_test_rows_do_not_change_a_baseline(table: Table) -> None:
    train = np.arange(20)
    before = Baselines(table, SETTINGS, 0).of(train).scores
    tflops = np.where(table.problem < 20, table.tflops, table.tflops[::-1])
    changed = table.__class__(**{**{n: getattr(table, n) for n in table.__dataclass_fields__}, "tflops": tflops})
    assert Baselines(changed, SETTINGS, 0).of(train).scores.tobytes() == before.tobytes()


def test_an_expected_choice_is_calibrated_before_it_is_asked_for(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    choices = [np.arange(20), np.arange(10, 30), np.arange(len(table.problems))]
    alone = [Baselines(table, SETTINGS, 0).of(problems).scores.tobytes() for problems in choices]
    begun, second, calibrate = list[bytes](), Event(), Baselines._calibrate

    def watched(baselines: Baselines, problems: npt.NDArray[np.int64]) -> _baseline.Baseline:
        begun.append(problems.tobytes())
        if len(begun) == 2:
            second.set()
        return calibrate(baselines, problems)

    monkeypatch.setattr(Baselines, "_calibrate", watched)
    baselines = Baselines(table, SETTINGS, 0)
    baselines.expect(choices)
    assert not begun
    baselines.of(choices[0])
    assert second.wait(60)
    elsewhere = pickle.loads(pickle.dumps(baselines))
    assert [baselines.of(problems).scores.tobytes() for problems in choices] == alone
    assert begun == [problems.tobytes() for problems in choices]
    assert [elsewhere.of(problems).scores.tobytes() for problems in choices] == alone


def test_other_labels_begin_from_nothing(table: Table) -> None:
    baseline = Baselines(table, ModelSettings(label="relative"), 0).of(np.arange(5))
    assert not baseline.scores.any()
    assert baseline.cost_model is None
    assert baseline.rates is None


def shortlist_of(most: int, label: str = "residual") -> ModelSettings:
    return dataclasses.replace(SETTINGS, label=label, shortlist=most)


class TestShortlist:
    def test_what_is_learnt_from_is_what_the_estimate_puts_first(self, table: Table) -> None:
        problems = np.array([3, 5, 30])
        baselines = Baselines(table, shortlist_of(4), 0)
        rows, rates = baselines.training_rows(problems), baselines.of(problems).rates
        assert rates is not None
        assert (np.diff(rows) > 0).all()
        assert set(table.problem[rows]) == set(problems)
        for problem in problems:
            of_problem = np.flatnonzero(table.problem == problem)
            kept = of_problem[np.isin(of_problem, rows)]
            assert len(kept) == 4
            assert rates[kept].min() >= rates[np.setdiff1d(of_problem, kept)].max()

    def test_it_is_ranked_by_trees_and_the_others_behind_it_by_the_estimate(self, table: Table) -> None:
        baselines, learnt = Baselines(table, shortlist_of(4), 0), np.arange(20)
        rows = table.rows_of(np.array([22, 25]))
        added = np.random.default_rng(0).normal(size=len(rows))
        ranking, known = baselines.ranking(learnt, rows), baselines.of(learnt)
        scores = ranking.scores(added[ranking.listed])
        assert known.rates is not None
        for problem in (22, 25):
            own = table.problem[rows] == problem
            by_rate = np.argsort(-known.rates[rows][own])
            listed, others = by_rate[:4], by_rate[4:]
            assert (scores[own][listed] == (known.scores[rows] + added)[own][listed]).all()
            assert (np.diff(scores[own][others]) <= 0).all()
            assert scores[own][others].max() < scores[own][listed].min()

    def test_all_of_a_problem_with_fewer(self, table: Table) -> None:
        problems = np.arange(10)
        rows = Baselines(table, shortlist_of(len(table.pool)), 0).training_rows(problems)
        assert rows.tolist() == table.rows_of(problems).tolist()

    @pytest.mark.parametrize("settings", [shortlist_of(0), shortlist_of(1, "relative")])
    def test_all_where_nothing_is_estimated_or_none_is_wanted(self, table: Table, settings: ModelSettings) -> None:
        baselines, problems = Baselines(table, settings, 0), np.arange(10)
        rows = table.rows_of(problems)
        assert baselines.training_rows(problems).tolist() == rows.tolist()
        added = np.random.default_rng(0).normal(size=len(rows))
        ranking = baselines.ranking(problems, rows)
        assert ranking.listed.all()
        assert (ranking.scores(added) == baselines.of(problems).scores[rows] + added).all()


def test_too_many_rows_are_calibrated_on_evenly_spread_problems(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    problems = make_folds(table, 3, 0)[0].train
    expected = Baselines(table, SETTINGS, 0)._fit(problems[::3])
    monkeypatch.setattr(_baseline, "MOST_CALIBRATED", len(table.rows_of(problems)) // 3 + 1)
    found = Baselines(table, SETTINGS, 0)._fit(problems)
    assert all(np.array_equal(values, getattr(expected, name)) for name, values in vars(found).items())

"""Shapes that save most per second of measuring come first: on stakes typed by hand, and in plans."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from small_model import altered, table, write_model
from synthetic import CONV, problems
from tilewise.arch import load_arch
from tilewise.campaigns.plan import KernelChoice, PlanSettings, Stakes, ValueProposal, propose_by_value
from tilewise.campaigns.plan._value import usual_distance
from tilewise.cli.main import main
from tilewise.collect import Plan, Timing, load_plan
from tilewise.data import holdout_mask
from tilewise.dispatch.logs import Request, request_log_text
from tilewise.errors import DataError
from tilewise.features import nearest_shape_distances
from tilewise.kernels import Pool, load_pool
from tilewise.metrics import DEPTH
from tilewise.model import COVARIATES, Calibration, TrainedModel, load_artefact
from tilewise.ops import GroupedConvProblem, Problem, Target

TARGET = Target.parse(CONV)
ASKED = problems(TARGET, 60)  # the first 40 are those of the table
CALLS = {p: 10 * (i + 1) for i, p in enumerate(ASKED)}
HELD = holdout_mask(TARGET.op, [p.group_key for p in ASKED], 0.18)
OPEN = [p for i, p in enumerate(ASKED) if i >= 40 and not HELD[i]]
LOSSES = (0.2, 0.1, 0.0, 0.0)  # of four calibration problems


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    return load_artefact(write_model(tmp_path_factory.mktemp("model") / CONV, trees=10))


def calibrated(model: TrainedModel, keys: np.ndarray | None = None) -> TrainedModel:
    """Return the model with a calibration of one bin that loses 7.5 % on average, by default at any distance."""
    count = len(COVARIATES)
    calibration = Calibration(
        keys=np.array([ASKED[0].group_key]) if keys is None else keys,
        farthest=99.0,
        centre=np.zeros(count),
        scale=np.ones(count),
        weights=np.zeros(count),
        intercept=0.0,
        edges=np.zeros(0),
        counts=np.array([len(LOSSES)]),
        losses=[[np.array([v for v in LOSSES if v > 0])] + [np.zeros(0)] * (DEPTH - 1)],
    )
    return altered(model, calibration=calibration)


def whole(pool: Pool) -> Plan:
    return Plan(TARGET, load_arch("sm90"), pool, (), Timing(), "next")


def _propose(model: TrainedModel | None, pool: Pool, budget_s: float = 1e6, share: float = 0.3) -> ValueProposal:
    settings = PlanSettings(budget_s, KernelChoice(share))
    return propose_by_value(CALLS, model, table(), whole(pool), settings, holdout_fraction=0.18)


def test_gain_per_second_by_hand() -> None:
    stakes = Stakes(
        calls=np.array([1000.0, 10.0, 1000.0, 1000.0]),
        pick_ms=np.array([1.0, 100.0, 1.0, 2.0]),
        regret=np.array([0.1, 0.5, 0.0, 0.1]),
        seconds=np.array([1.0, 1.0, 1.0, 4.0]),
    )
    assert stakes.spent_s.tolist() == [1.0, 1.0, 1.0, 2.0]
    assert stakes.saved_s == pytest.approx([0.1, 0.5, 0.0, 0.2])
    assert stakes.order() == [1, 0, 3]  # nothing is expected of the third
    unknown = dataclasses.replace(stakes, regret=np.full(4, np.nan))
    assert unknown.order() == [0, 1, 2, 3]  # by time spent a second of measuring


def test_what_was_asked_for_and_is_neither_measured_nor_held_out(model: TrainedModel) -> None:
    proposal = _propose(calibrated(model), model.pool)
    chosen = [item.problem for item in proposal.plan.items]
    assert set(chosen) == set(OPEN)
    assert proposal.calls == sum(CALLS.values())
    assert proposal.stakes.calls.tolist() == [CALLS[p] for p in chosen]
    assert proposal.stakes.regret == pytest.approx(np.full(len(OPEN), 0.075))
    picks = [p.flops / model.best(p, 1)[1][0] / 1e9 for p in chosen]
    assert proposal.stakes.pick_ms == pytest.approx(picks)
    worth = proposal.stakes.saved_s / proposal.stakes.seconds
    assert (np.diff(worth) <= 0).all()
    for item in proposal.plan.items:
        supported = int(model.supported(item.problem).sum())
        assert len(item.kernels or ()) == min(max(round(0.3 * supported), 2), supported)


def test_the_budget_takes_the_best_first(model: TrainedModel) -> None:
    known = calibrated(model)
    every = _propose(known, model.pool)
    some = _propose(known, model.pool, budget_s=float(every.stakes.seconds[:3].sum()) + 1e-9)
    assert [i.problem for i in some.plan.items] == [i.problem for i in every.plan.items[:3]]
    assert some.could_be.saved_s.sum() == pytest.approx(every.stakes.saved_s.sum())


def test_how_far_shapes_usually_lie_from_each_other() -> None:
    line = np.array([[1, 2], [2, 2], [8, 2], [64, 2]])  # 1, 1, 2 and 3 octaves from the nearest
    assert usual_distance(line) == pytest.approx(np.quantile([1, 1, 2, 3], 0.9))
    assert usual_distance(line[:1]) == np.inf


def test_a_shape_unlike_all_that_was_calibrated_on_is_as_bad_as_the_worst(model: TrainedModel) -> None:
    """The bound of four problems at 90 % is 1: they bound nothing."""
    sizes = OPEN[0].to_dict()
    near = [OPEN[0], GroupedConvProblem.from_dict(sizes | {"N": 2 * sizes["N"]})]  # an octave from each other
    keys = np.array([p.group_key for p in near])
    proposal = _propose(calibrated(model, keys), model.pool)
    far = [nearest_shape_distances([i.problem.group_key], keys)[0] > 1 for i in proposal.plan.items]
    assert 0 < sum(far) < len(far)
    assert proposal.stakes.regret == pytest.approx(np.where(far, 1.0, 0.075))


def test_kernels_that_the_model_does_not_know_are_measured(model: TrainedModel) -> None:
    larger = load_pool(TARGET)
    new = [i for i, name in enumerate(larger.names) if name not in model.pool.names]
    proposal = _propose(calibrated(model), larger)
    for item in proposal.plan.items:
        able = larger.supported(item.problem)
        assert {i for i in new if able[i]} <= set(item.kernels or ())


@pytest.mark.parametrize("there_is_a_model", [True, False])
def test_without_a_calibration_nobody_knows_what_is_saved(model: TrainedModel, there_is_a_model: bool) -> None:
    proposal = _propose(model if there_is_a_model else None, model.pool)
    assert {item.problem for item in proposal.plan.items} == set(OPEN)
    assert np.isnan(proposal.stakes.saved_s).all()
    worth = proposal.stakes.spent_s / proposal.stakes.seconds
    assert (np.diff(worth) <= 0).all()


def test_nothing_left_to_gain_is_said(model: TrainedModel) -> None:
    sure = calibrated(model)
    assert sure.calibration is not None
    never = dataclasses.replace(sure.calibration, losses=[[np.zeros(0)] * DEPTH])
    with pytest.raises(
        DataError, match=f"measuring the {len(OPEN)} problems of the trace that could be measured saves nothing"
    ):
        _propose(altered(sure, calibration=never), model.pool)


@pytest.mark.long
def test_the_verb_plans_what_was_recorded(
    model: TrainedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table().to_parquet(tmp_path / "t.parquet")
    (tmp_path / "asked.jsonl").write_text(request_log_text(_recorded(CALLS)))
    path = tmp_path / "plan.json"
    command = ["plan", f"data={tmp_path}", f"plan.requests={tmp_path}/asked.jsonl", f"output={path}"]
    assert main([*command, "collect.run_id=next", f"model_dir={model.where}", "plan.budget_s=1000000"]) == 0
    said = capsys.readouterr().out
    assert f"{len(OPEN)} of {len(OPEN)} problems" in said
    assert f"{sum(CALLS[p] for p in OPEN)} of {sum(CALLS.values())} calls" in said
    assert "GPU minutes saved, expected: unknown" in said
    assert {item.problem for item in load_plan(path).items} == set(OPEN)
    assert main([*command, "collect.run_id=next", "variant=bwd_data"]) == 2
    assert "no row of grouped_conv_bwd_data_bf16_sm90" in capsys.readouterr().err


def _recorded(calls: dict[Problem, int]) -> Counter[Request]:
    return Counter({Request(CONV, problem, "model"): count for problem, count in calls.items()})

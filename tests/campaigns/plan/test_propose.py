"""A proposal asks for new problems alone, with few kernels each, within its budget; `tilewise collect` runs it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from synthetic import CONV, kernels, measurements, problems
from tilewise.arch import load_arch
from tilewise.campaigns.plan import KernelChoice, PlanSettings, Proposal, propose
from tilewise.cli.main import main
from tilewise.collect import Item, Plan, Timing, collect_with_engine, load_plan
from tilewise.collect.engines import replay_engine
from tilewise.data import holdout_mask, read_measurements
from tilewise.errors import ConfigError, DataError
from tilewise.kernels import Pool
from tilewise.ops import Target

TARGET = Target.parse(CONV)
POOL = Pool(TARGET.op, TARGET.variant, TARGET.dtype, kernels(TARGET, 20))
FRAME = measurements(n_problems=30, n_kernels=20, seed=3)
ITEMS = tuple(Item(p, "test") for p in problems(TARGET, 70, 3))  # the first 30 are those of FRAME
SETTINGS = PlanSettings(budget_s=1.0, choice=KernelChoice(share=0.3), members=2, threads=1)


def _whole(run_id: str, items: tuple[Item, ...] = ITEMS) -> Plan:
    return Plan(TARGET, load_arch("sm90"), POOL, items, Timing(), run_id)


def _propose(frame: pd.DataFrame | None = FRAME, settings: PlanSettings = SETTINGS, run_id: str = "next") -> Proposal:
    return propose(frame, _whole(run_id), settings, holdout_fraction=0.18)


@pytest.fixture(scope="module")
def proposal() -> Proposal:
    return _propose()


def test_only_new_problems_outside_the_holdout_with_kernels_that_support_them(proposal: Proposal) -> None:
    measured = {item.problem for item in ITEMS[:30]}
    chosen = [item.problem for item in proposal.plan.items]
    assert chosen
    assert not measured & set(chosen)
    assert not holdout_mask(TARGET.op, [p.group_key for p in chosen], 0.18).any()
    for item in proposal.plan.items:
        assert item.kernels is not None
        supported = POOL.supported(item.problem)
        assert supported[list(item.kernels)].all()
        assert len(item.kernels) == max(round(0.3 * supported.sum()), 2)


def test_the_budget_is_kept(proposal: Proposal) -> None:
    assert 0 < proposal.seconds <= SETTINGS.budget_s
    assert len(proposal.plan.items) < proposal.candidates
    assert proposal.pairs == sum(len(i.kernels or ()) for i in proposal.plan.items)
    twice = _propose(settings=PlanSettings(2.0, SETTINGS.choice, 2, threads=1))
    assert [i.problem for i in twice.plan.items][: len(proposal.plan.items)] == [i.problem for i in proposal.plan.items]


def test_equal_arguments_give_equal_plans(proposal: Proposal) -> None:
    assert _propose().plan.dumps() == proposal.plan.dumps()


def test_what_is_at_stake_and_how_far_is_told(proposal: Proposal) -> None:
    assert ((proposal.regret >= 0) & (proposal.regret < 1)).all()
    assert (proposal.shape_distance > 0).all()


def test_without_measurements_problems_far_apart_with_kernels_in_the_pools_order_and_drawn() -> None:
    proposal = _propose(None)
    for item in proposal.plan.items:
        supported = np.flatnonzero(POOL.supported(item.problem))
        wanted = max(round(0.3 * len(supported)), 2)
        assert item.kernels is not None
        assert len(item.kernels) == wanted
        assert set(supported[: -(-wanted // 2)]) <= set(item.kernels)
    assert np.isnan(proposal.regret).all()
    assert _propose(None).plan.hash == proposal.plan.hash


def test_a_run_is_not_repeated_under_its_name() -> None:
    with pytest.raises(ConfigError, match="run_id=synthetic-1 stands in the measurements"):
        _propose(run_id="synthetic-1")


def test_no_problem_left_is_said() -> None:
    with pytest.raises(DataError, match="no problem is left to plan: all 30 are measured"):
        propose(FRAME, _whole("x", ITEMS[:30]), SETTINGS, holdout_fraction=0.18)


@pytest.mark.long
def test_collect_runs_the_plan_and_training_takes_its_table(proposal: Proposal, tmp_path: Path) -> None:
    measurements(n_problems=70, n_kernels=20, seed=3, failures=0).to_parquet(tmp_path / "all.parquet")
    report = collect_with_engine(
        proposal.plan, tmp_path / "next.parquet", replay_engine(tmp_path / "all.parquet"), [0], lambda *_: None
    )
    assert report.by_status == {"ok": proposal.pairs}
    new = read_measurements(tmp_path / "next.parquet", TARGET)
    assert len(new) == proposal.pairs
    both = pd.concat([FRAME, new], ignore_index=True)
    again = _propose(both, run_id="third")
    assert not {i.problem for i in again.plan.items} & {i.problem for i in proposal.plan.items}


@pytest.mark.long
def test_the_verb_writes_a_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    FRAME.to_parquet(tmp_path / "t.parquet")
    path = tmp_path / "plan.json"
    command = ["plan", f"target={CONV}", f"data={tmp_path}", "threads=1", "plan.members=1", "plan.budget_s=60"]
    shapes = "collect.part=[0,5]"
    assert main([*command, "holdout.fraction=0", shapes, "collect.run_id=next", f"output={path}"]) == 0
    said = capsys.readouterr().out
    assert "run next: 5 of 5 problems" in said
    assert "log2 distance" in said
    assert len(load_plan(path).items) == 5
    assert main([*command, shapes, "collect.run_id=next"]) == 2
    assert "output: missing" in capsys.readouterr().err

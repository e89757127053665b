"""Searches propose only legal configurations, count evaluations, repeat under a seed, and find the optimum."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from small_model import table, write_model
from strategies import conv_problems, gemm_problems
from synthetic import CONV, problems
from tilewise.arch import load_arch
from tilewise.campaigns.search import (
    SearchSettings,
    judge_search_campaign,
    plan_search_campaign,
    search,
    simulate_searches,
    validation_rows,
)
from tilewise.campaigns.search._methods import METHODS, repaired
from tilewise.campaigns.search._space import LegalSpace, ListedSpace
from tilewise.campaigns.search._surrogate import BudgetSpent, PoolDistances, Surrogate
from tilewise.cli.main import main
from tilewise.collect import load_plan
from tilewise.data import read_measurements
from tilewise.errors import ConfigError, KernelError
from tilewise.kernels import illegal, load_pool, unsupported
from tilewise.model import TrainedModel, load_artefact
from tilewise.ops import Problem, Target

TARGET = Target.parse(CONV)
ARCH = load_arch("sm90")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    return load_artefact(write_model(tmp_path_factory.mktemp("model") / CONV))


@pytest.fixture(scope="module")
def problem() -> Problem:
    return problems(TARGET, 50, 7)[-1]


@pytest.mark.long
@pytest.mark.parametrize("name", [CONV, "gemm_universal_fp8_sm90", "grouped_conv_bwd_weight_bf16_sm90"])
def test_every_proposal_of_a_space_is_legal(name: str) -> None:
    target = Target.parse(name)

    @settings(max_examples=8)
    @given(shape=gemm_problems() if target.op == "gemm" else conv_problems(), seed=st.integers(0, 99))
    def check(shape: Problem, seed: int) -> None:
        space, rng = LegalSpace(target, ARCH, shape), np.random.default_rng(seed)
        try:
            legal = space.place(space.draw(rng))
        except KernelError:
            return  # nothing supports the problem
        assert legal is not None
        for place in rng.integers(space.shape, size=(20, len(space.shape))):
            kernel = repaired(space, place, legal, rng)
            assert illegal(kernel, target, ARCH) is None
            assert unsupported(kernel, shape, target.variant, target.dtype) is None

    check()


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_a_search_keeps_to_its_budget_and_repeats_under_its_seed(
    method: str, model: TrainedModel, problem: Problem
) -> None:
    given_ = SearchSettings(method, n_evaluations=60, seed=3, start=4)
    first = search(model, problem, given_, 60)
    assert first.evaluations == 60
    assert len({f.kernel for f in first.found}) == 60
    assert search(model, problem, given_, 60) == first
    assert search(model, problem, SearchSettings(method, 60, 4, 4), 60) != first
    for found in first.found:
        assert illegal(found.kernel, TARGET, ARCH) is None
        assert unsupported(found.kernel, problem, TARGET.variant, TARGET.dtype) is None
        assert found.in_pool == (found.steps == 0) == (found.kernel in model.pool.kernels)


@pytest.mark.long
@pytest.mark.parametrize("method", METHODS)
def test_a_search_never_ends_below_where_it_began(method: str, model: TrainedModel, problem: Problem) -> None:
    best = model.predict_tflops(problem)[model.rank(problem, 1)[0]]
    found = search(model, problem, SearchSettings(method, 40, 0, 5, caution=0.0), 1).found[0]
    assert found.predicted_tflops >= best * (1 - 1e-9)


@pytest.mark.long
def test_evolution_beats_random_draws(model: TrainedModel) -> None:
    gained = []
    for shape in problems(TARGET, 12, 11):
        ends = [
            search(model, shape, SearchSettings(m, 200, 1, 0, caution=0.0), 1).found[0].predicted_tflops
            for m in ("evolution", "random")
        ]
        gained.append(ends[0] / ends[1])
    assert np.mean(gained) > 1.0


@pytest.mark.long
def test_caution_keeps_a_search_near_the_pool(model: TrainedModel, problem: Problem) -> None:
    steps = [search(model, problem, SearchSettings("evolution", 150, 0, 5, c), 1).found[0].steps for c in (0.0, 9.0)]
    assert steps[1] == 0.0 <= steps[0]


def test_a_listed_space_holds_its_kernels_and_snaps_to_the_nearest() -> None:
    kernels = [k for k in load_pool(TARGET).kernels if k.pipeline == "taps"][:6]
    space = ListedSpace(kernels)
    for kernel in kernels:
        place = space.place(kernel)
        assert place is not None
        assert space.at(place) == kernel
    rng = np.random.default_rng(0)
    assert {space.draw(rng) for _ in range(100)} == set(kernels)
    assert all(space.at(rng.integers(space.shape)) in kernels for _ in range(20))
    with pytest.raises(KernelError, match="no kernels to search"):
        ListedSpace([])


def test_asking_again_is_free_and_asking_too_much_ends_it(model: TrainedModel, problem: Problem) -> None:
    kernels = [model.pool.kernels[i] for i in model.rank(problem, 6)]
    ask = Surrogate(model, problem, 4)
    first = ask(kernels[:3])
    assert (ask(kernels[:3]) == first).all()
    assert ask.left == 1
    with pytest.raises(BudgetSpent):
        ask(kernels)
    assert list(ask.scores) == kernels[:4]
    assert ask.best(2) == [(kernels[0], first[0]), (kernels[1], first[1])]


def test_steps_are_octaves_to_the_most_alike_kernel_of_the_pool(model: TrainedModel) -> None:
    columns = {n: v[:1].copy() for n, v in model.pool.columns.items()}
    assert PoolDistances(model.pool).steps(model.pool.columns).tolist() == [0.0] * len(model.pool)
    columns["group_m"] = columns["group_m"] * 1024
    columns["num_stages"] = columns["num_stages"] + 1
    assert PoolDistances(model.pool).steps(columns)[0] >= 7  # from group_m 8 at most, whatever the other kernels are


def test_searching_what_was_measured_finds_the_models_own_pick(model: TrainedModel) -> None:
    rows = validation_rows(table(), model, 0.5, 6, 0)
    for simulated in simulate_searches(rows, model, SearchSettings("evolution", 500), 3):
        assert 0 < simulated.efficiency <= simulated.best_of_count <= 1
        assert simulated.evaluations <= len(model.pool)


@pytest.mark.long
def test_a_campaign_measures_new_kernels_beside_the_recorded_best_and_is_judged(model: TrainedModel) -> None:
    rows = validation_rows(table(), model, 0.5, 4, 0)
    plan = plan_search_campaign(rows, model, SearchSettings("random", 60), 2, "search-1")
    assert len(plan.items) == 4
    records = []
    for item in plan.items:
        assert item.kernels is not None
        chosen = [plan.pool.kernels[i] for i in item.kernels]
        pooled = [k for k in chosen if k in model.pool.kernels]
        assert (len(pooled), len(chosen)) == (2, 4)
        same = (rows[list(item.problem.to_dict())] == pd.Series(item.problem.to_dict())).all(axis=1)
        best = set(rows[same].nlargest(2, "tflops")["kernel_name"])
        assert {k.name(TARGET.op, TARGET.variant, TARGET.dtype) for k in pooled} == best
        for k in chosen:
            tflops = 3.0 if k == chosen[-1] and k not in pooled else 2.0 if k in pooled else 1.0
            name = k.name(TARGET.op, TARGET.variant, TARGET.dtype)
            of = dataclasses.asdict(TARGET)
            records.append(
                {**of, **item.problem.to_dict(), **k.to_dict(), "kernel_name": name, "tflops": tflops, "is_valid": True}
            )
    verdict, per_problem = judge_search_campaign(pd.DataFrame(records), model)
    expected = per_problem["gain"].to_numpy()
    assert set(expected) <= {0.5, 1.5}
    assert verdict.problems == 4
    assert verdict.found_better == pytest.approx((expected > 1).mean())
    assert verdict.geometric_mean == pytest.approx(np.exp(np.log(expected).mean()))
    assert verdict.with_search == pytest.approx(np.exp(np.log(np.maximum(expected, 1)).mean()))
    assert verdict.failed == 0


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (("annealing",), "search.method must be one of random, evolution, tpe"),
        (("random", 0), "search.n_evaluations must be a whole number of at least 1"),
        (("random", 5, 0, 0, -1.0), "search.caution must not be negative"),
    ],
)
def test_settings_out_of_range_are_refused(values: tuple[object, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        SearchSettings(*values)  # type: ignore[arg-type]


@pytest.mark.long
def test_the_verb_searches_one_problem_and_plans_many(
    model: TrainedModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table().to_parquet(tmp_path / "t.parquet")
    base = ["search", f"model_dir={model.where}", f"data={tmp_path}", "search.n_evaluations=50", "holdout.fraction=0.5"]
    shape = "problem={N:4,C:64,K:64,G:1,Hi:14,Wi:14,Y:3,X:3}"
    assert main([*base, shape, f"output={tmp_path}/found.json"]) == 0
    assert "evolution, 50 evaluations" in capsys.readouterr().out
    assert main([*base, "search.problems=2", "collect.run_id=s", f"output={tmp_path}/plan.json"]) == 0
    assert len(load_plan(tmp_path / "plan.json").items) == 2
    assert main([*base, "search.problems=3", f"collect.simulate={tmp_path}"]) == 0
    assert "best_of_3_within_1_percent" in capsys.readouterr().out
    assert main(base) == 2
    assert "name what to search for" in capsys.readouterr().err
    assert len(read_measurements(tmp_path / "t.parquet", TARGET)) == len(table())

"""A compiled model against the NumPy path, on the real formulas: features, rules, estimate, scores, the best."""

from __future__ import annotations

import dataclasses
from functools import cache
from pathlib import Path
from typing import Any

import lightgbm as lgb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from core.compiled import needs_core, stumps
from small_model import altered, write_model
from strategies import conv_problems, gemm_problems
from tilewise.arch import load_arch
from tilewise.core import compiled_core
from tilewise.dispatch import Dispatcher
from tilewise.errors import ConfigError
from tilewise.features import CostModel, feature_table, log_work, terms_of
from tilewise.kernels import Pool, load_pool
from tilewise.kernels.ck import CkKernel
from tilewise.model import Ensemble, compile_parts, load_artefact, put_behind, shortlisted
from tilewise.model._ranker import Ranker, RankerInputs
from tilewise.ops import CONV_LAYOUTS, GemmProblem, GroupedConvProblem, Problem, Target

TRITON = (
    "grouped_conv_forward_bf16_sm90", "grouped_conv_bwd_data_bf16_sm90", "grouped_conv_bwd_weight_bf16_sm90",
    "gemm_universal_bf16_sm90", "gemm_universal_fp8_sm90",
)  # fmt: skip
CK = (
    "grouped_conv_forward_bf16_gfx950", "grouped_conv_bwd_data_bf16_gfx942", "grouped_conv_bwd_weight_fp16_gfx950",
    "gemm_universal_fp8_gfx950",
)  # fmt: skip
RESNET = GroupedConvProblem(N=32, C=256, K=256, G=1, Hi=14, Wi=14, Y=3, X=3, pad_h=1, pad_w=1)


def ck_kernels(op: str) -> tuple[CkKernel, ...]:
    """Return kernels that differ in every column that rules and formulas use."""
    rng = np.random.default_rng(0)
    made = {
        CkKernel(
            int(rng.choice([16, 64, 128])),
            int(rng.choice([16, 64, 128])),
            int(rng.choice([16, 64])),
            str(rng.choice(["compv3", "compv4", "mem"])),
            ndim=int(rng.choice([2, 3])) if op == "grouped_conv" else 0,
            gemm_layout="" if op == "grouped_conv" else str(rng.choice(["rcr", "rrr", "crr", ""])),
            warp_m=int(rng.choice([0, 1, 2])),
            warp_n=2,
            warp_k=1,
            scheduler=str(rng.choice(["intrawave", ""])),
            pad_m=bool(rng.integers(2)),
            pad_n=bool(rng.integers(2)),
            persistent=bool(rng.integers(2)),
            double_smem_buffer=bool(rng.integers(2)),
            vector_a=int(rng.choice([0, 1, 4, 8])),
            vector_c=int(rng.choice([0, 2])),
            warp_tile_k=int(rng.choice([0, 16])),
            split_k=0 if op == "grouped_conv" else int(rng.choice([0, 2, 3])),
            num_groups_to_merge=int(rng.choice([0, 1, 2])),
        )
        for _ in range(70)
    }
    return tuple({k.config: k for k in sorted(made, key=repr)}.values())


def calibrated(pool: Pool, table: Any, seed: int) -> CostModel:
    """Return a cost model with random numbers of every sign and size."""
    rng = np.random.default_rng(seed)
    columns = len(table.costs) + len(table.drivers)
    programs = np.unique(rng.integers(0, 600, 12)).astype(np.int64)
    weights = rng.normal(size=(len(pool) + 1, len(programs) + 1, 1 + 2 * columns)) / 30
    factors = rng.random((len(programs) + 1, len(table.costs)))
    return CostModel(programs, factors, rng.normal(size=columns), rng.random(columns) + 0.1, weights)


def ranker_of(
    table: Any, pool: Pool, arch: Any, trees: Ensemble, estimate: CostModel | None = None, shortlist: int = 0
) -> Ranker:
    core = compiled_core()
    assert core is not None
    return Ranker.of(core, compile_parts(RankerInputs(table, pool, arch, trees, None, estimate, shortlist)), pool.op)


@cache
def compiled(name: str, shortlist: int = 0) -> tuple[Ranker, Pool, Any, Any, Ensemble, CostModel]:
    target = Target.parse(name)
    arch, table = load_arch(target.arch), feature_table(target.op)
    pool = load_pool(target) if name in TRITON else Pool(target.op, target.variant, target.dtype, ck_kernels(target.op))
    trees, estimate = stumps(len(table.names), 3.0), calibrated(pool, table, 1)
    return ranker_of(table, pool, arch, trees, estimate, shortlist), pool, arch, table, trees, estimate


def test_without_a_cost_model_no_cost_is_compiled() -> None:
    pool, arch, table = load_pool(Target.parse(TRITON[3])), load_arch("sm90"), feature_table("gemm")
    trees = stumps(len(table.names), 3.0)
    estimate = calibrated(pool, table, 1)
    alone, both = (
        compile_parts(RankerInputs(table, pool, arch, trees, None, cost_model, 0)).arrays
        for cost_model in (None, estimate)
    )
    assert (len(alone["costs"]), len(alone["drivers"]), len(alone["single"]), alone["cost_model"]) == (0, 0, 0, None)
    assert (len(both["costs"]), len(both["single"])) == (len(table.costs), 2)
    assert len(alone["features"]) == len(both["features"]) > 0


@pytest.mark.long
@needs_core
@pytest.mark.parametrize("name", [*TRITON, *CK])
@given(data=st.data())
@settings(max_examples=25)
def test_the_program_is_numpys_bit_for_bit(name: str, data: st.DataObject) -> None:
    convs = conv_problems(max_size=512, layouts=CONV_LAYOUTS)
    problem: Problem = data.draw(gemm_problems() if "gemm" in name else convs)
    assert_bit_for_bit(name, data.draw(st.sampled_from([0, 1, 3, 24, 70])), problem)


@needs_core
@pytest.mark.parametrize("shortlist", [0, 3])
def test_a_real_problem_is_numpys_bit_for_bit(shortlist: int) -> None:
    assert_bit_for_bit(TRITON[0], shortlist, RESNET)


def assert_bit_for_bit(name: str, shortlist: int, problem: Problem) -> None:
    ranker, pool, arch, table, trees, estimate = compiled(name, shortlist)
    rows = table.rows_of(problem.to_dict(), pool.columns, variant=pool.variant, dtype=pool.dtype, arch=arch)
    matrix, supported = table.compute(rows), pool.supported(problem)
    assert ranker.matrix(problem, len(pool)).tobytes() == matrix.tobytes()
    assert ranker.supported(problem, len(pool)).tolist() == supported.tolist()
    rates = log_work(rows) - estimate.log_clocks(terms_of(table, rows), np.arange(len(pool)))
    scores, can = np.full(len(pool), -np.inf), np.flatnonzero(supported)
    scores[can] = (rates + trees.predict(matrix))[can]
    if shortlist:
        listed = shortlisted(np.zeros_like(can), rates[can], shortlist)
        scores[can] = put_behind(np.zeros_like(can), rates[can], scores[can], listed)
    assert ranker.score(problem, len(pool)).tobytes() == scores.tobytes()
    expected = [i for i in np.argsort(-scores, kind="stable").tolist() if supported[i]]
    for most in (1, 3, shortlist + 5, len(pool)):
        best = ranker.best(problem, most)
        assert list(best.kernels) == expected[:most]
        assert best.scores == tuple(scores[list(best.kernels)])


@needs_core
def test_trees_without_a_split_use_one_feature() -> None:
    _, pool, arch, table, _, _ = compiled(TRITON[0])
    x = np.ones((30, len(table.names)))
    flat = Ensemble.from_text(lgb.train({"verbose": -1}, lgb.Dataset(x, np.full(30, 2.5)), 1).model_to_string())
    ranker = ranker_of(table, pool, arch, flat)
    assert ranker.used_features.tolist() == [0]
    assert set(ranker.score(RESNET, len(pool))) <= {2.5, -np.inf}


@needs_core
@pytest.mark.parametrize("name", [TRITON[0], TRITON[3]])
def test_a_model_ranks_and_predicts_alike_both_ways(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = write_model(tmp_path / "model", target=name)
    problem = RESNET if "conv" in name else GemmProblem(512, 768, 1024, "rrr")
    answers = []
    for choice in ("c", "numpy"):
        monkeypatch.setenv("TILEWISE_CORE", choice)
        model = load_artefact(folder)
        assert (model.ranker is None) == (choice == "numpy")
        order, tflops = model.best(problem, 7)
        ranked = Dispatcher.from_folder(folder).rank(problem, 7)
        assert [s.predicted_tflops for s in ranked] == list(tflops)
        assert [list(one) for one in model.best(problem, 1)] == [list(order[:1]), list(tflops[:1])]
        answers.append((list(order), list(tflops), model.score(problem).tobytes(), ranked))
        assert model.rank(problem, 7).tolist() == list(order)
        assert model.predict_tflops(problem)[list(order)].tolist() == list(tflops)
    assert answers[0] == answers[1]


@needs_core
@pytest.mark.parametrize(("estimated", "shortlist"), [(False, 1), (True, -1)])
def test_a_shortlist_without_an_estimate_is_refused(estimated: bool, shortlist: int) -> None:
    _, pool, arch, table, trees, estimate = compiled(TRITON[0])
    with pytest.raises(ValueError, match="ranker: its arrays are inconsistent or exceed the limits of the core"):
        ranker_of(table, pool, arch, trees, estimate if estimated else None, shortlist)


@needs_core
def test_sizes_beyond_int64_are_left_to_numpy(tmp_path: Path) -> None:
    model = load_artefact(write_model(tmp_path / "model"))
    huge = dataclasses.replace(RESNET, stride_h=2**40, stride_w=2**40, stride_d=2**40)
    _, pool, arch, table, trees, _ = compiled(TRITON[1])
    backward = ranker_of(table, pool, arch, trees)
    with pytest.raises(OverflowError):
        backward.best(huge, 1)
    assert model.supported(huge).tolist() == model.pool.supported(huge).tolist()
    can = np.flatnonzero(model.supported(huge))
    kernels = {name: column[can] for name, column in model.pool.columns.items()}
    scores = model.score_candidates(np.zeros_like(can), huge.to_dict(), kernels)
    assert model.score(huge)[can].tobytes() == scores.tobytes()


@needs_core
def test_formulas_that_cannot_be_traced_are_left_to_numpy(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = load_artefact(write_model(tmp_path / "model"))
    asking = dataclasses.replace(model.features.features[0], compute=lambda i: 1 if i.p.N > 3 else 0)
    changed = dataclasses.replace(model.features, features=(asking, *model.features.features[1:]))
    assert altered(model, features=changed).ranker is None
    assert "NumPy ranks this model, which is slower: a formula needs the value" in caplog.text


def test_the_switch_takes_its_values_only(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TILEWISE_CORE", "fast")
    with pytest.raises(ConfigError, match="TILEWISE_CORE=fast: must be c, numpy, or not set"):
        write_model(tmp_path / "model", note="never written")

"""The predictor takes any kernels, and agrees with the model's own ranking on those of its pool."""

from __future__ import annotations

import dataclasses

import numpy as np
import pandas as pd
import pytest

from model.test_artefact import DEPTHWISE, LAYER, POINT, make_parts
from small_model import write_model
from synthetic import CONV
from tilewise.errors import KernelError, ProblemError
from tilewise.kernels import load_pool
from tilewise.kernels.vendor import VendorCall
from tilewise.model import Predictor, write_artefact
from tilewise.ops import GemmProblem, Problem, Target


@pytest.fixture(scope="module")
def predictor(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    return Predictor.load(write_model(tmp_path_factory.mktemp("small") / "m", trees=20))


@pytest.fixture(scope="module")
def with_latency(tmp_path_factory: pytest.TempPathFactory) -> Predictor:
    folder = tmp_path_factory.mktemp("latency") / "m"
    write_artefact(folder, make_parts("relative"))
    return Predictor.load(folder)


@pytest.mark.parametrize("problem", [LAYER, POINT, DEPTHWISE])
def test_the_pool_is_ranked_as_the_model_ranks_it(predictor: Predictor, problem: Problem) -> None:
    model = predictor.model
    order, tflops = model.best(problem)
    ranked = predictor.rank(problem)
    assert [p.kernel_name for p in ranked] == [model.pool.names[i] for i in order]
    assert [p.tflops for p in ranked] == list(tflops)
    assert predictor.rank(problem, top_k=2) == ranked[:2]
    assert [p.kernel_name for p in predictor.rank(problem, model.pool.names)] == [p.kernel_name for p in ranked]


def test_kernels_outside_the_pool_are_ranked(predictor: Predictor) -> None:
    pool = predictor.model.pool
    foreign = [
        k for k in load_pool(Target.parse(CONV)).kernels if k not in pool.kernels and type(k) in map(type, pool.kernels)
    ]
    assert len(foreign) > 5
    spelt = [foreign[0], foreign[1].config, foreign[2].name("grouped_conv", "forward", "bf16"), pool.kernels[0]]
    predicted = predictor.predict(LAYER, spelt)
    assert [p.kernel for p in predicted] == [*foreign[:3], pool.kernels[0]]
    able = [p for p in predicted if p.why_unsupported is None]
    assert able
    assert all(np.isfinite(list(p.figures().values())).all() for p in able)
    assert {p.kernel_name for p in predictor.rank(LAYER, spelt)} == {p.kernel_name for p in able}


def test_latency_and_bandwidth_follow_from_tflops_without_trees_of_their_own(predictor: Predictor) -> None:
    best = predictor.rank(LAYER)[0]
    assert best.latency_ms == pytest.approx(LAYER.flops / best.tflops / 1e9, rel=1e-12)
    assert best.bandwidth_gb_s == pytest.approx(LAYER.min_bytes("bf16") / best.latency_ms / 1e6, rel=1e-12)
    assert predictor.predict_bandwidth(LAYER, [best.kernel]).tolist() == [best.bandwidth_gb_s]


def test_latency_is_that_of_the_models_own_trees(with_latency: Predictor) -> None:
    predicted = with_latency.predict(LAYER)
    own = with_latency.model.predict_extra("latency", LAYER)
    able = [p.why_unsupported is None for p in predicted]
    np.testing.assert_array_equal(with_latency.predict_latency(LAYER)[able], own[able])
    assert predicted[0].bandwidth_gb_s == pytest.approx(LAYER.min_bytes("bf16") / predicted[0].latency_ms / 1e6)


def test_a_kernel_that_cannot_compute_the_problem_has_a_reason_and_no_figures(predictor: Predictor) -> None:
    reasons = predictor.model.pool.unsupported(DEPTHWISE)
    predicted = predictor.predict(DEPTHWISE)
    assert [p.why_unsupported for p in predicted] == reasons.tolist()
    assert any(reasons)
    assert all(np.isnan(p.tflops) == (p.why_unsupported is not None) for p in predicted)


def test_batches_and_frames_give_the_same_figures(predictor: Predictor) -> None:
    names = list(predictor.model.pool.names[:3])
    batch = predictor.predict_batch([LAYER, POINT], names)
    rows = [{**p.to_dict(), "dtype": "bf16", "kernel_name": name, "note": 1} for p in (LAYER, POINT) for name in names]
    frame = pd.DataFrame(rows, index=range(10, 16))
    frame.loc[10, "pad_d"] = np.nan  # an empty cell takes its default
    found = predictor.predict_frame(frame)
    assert found.index.tolist() == frame.index.tolist()
    assert list(found)[: len(frame.columns)] == list(frame)
    expected = [p for of_problem in batch for p in of_problem]
    for name in ("tflops", "latency_ms", "bandwidth_gb_s"):
        np.testing.assert_array_equal(found[f"predicted_{name}"], [getattr(p, name) for p in expected])
    assert predictor.rank_batch([LAYER], names, 1) == [predictor.rank(LAYER, names, 1)]


def test_a_stated_dtype_is_checked(predictor: Predictor) -> None:
    assert predictor.rank({**LAYER.to_dict(), "dtype": "bf16"}) == predictor.rank(LAYER)
    with pytest.raises(ProblemError, match="dtype: must be bf16, that of grouped_conv_forward_bf16_sm90, got 'fp16'"):
        predictor.rank({**LAYER.to_dict(), "dtype": "fp16"})


def test_mistakes_are_named(predictor: Predictor) -> None:
    with pytest.raises(KernelError, match="'nonsense' names no kernel of grouped_conv_forward_bf16_sm90"):
        predictor.predict(LAYER, ["nonsense"])
    with pytest.raises(KernelError, match=r"has learnt kernels of .* only"):
        predictor.predict(LAYER, [VendorCall("cudnn")])
    with pytest.raises(ProblemError, match="a gemm problem"):
        predictor.predict(GemmProblem(8, 8, 8))
    with pytest.raises(KernelError, match="a frame needs the column kernel_name"):
        predictor.predict_frame(pd.DataFrame([dataclasses.asdict(LAYER)]))


def test_a_problem_that_no_kernel_computes_has_reasons_only(predictor: Predictor) -> None:
    predicted = predictor.predict(dataclasses.replace(LAYER, N=2**22))
    assert all(p.why_unsupported for p in predicted)
    assert np.isnan([list(p.figures().values()) for p in predicted]).all()

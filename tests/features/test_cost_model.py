"""The cost model: rows are independent, unknown programs and kernels are served, and files restore it exactly."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from strategies import CONV_POOL
from tilewise.arch import load_arch
from tilewise.errors import ArtefactError
from tilewise.features import CostModel, Terms, feature_table, log_work, terms_of
from tilewise.features._cost_model import terms_hash
from tilewise.ops import GroupedConvProblem

SM90 = load_arch("sm90")
TABLE = feature_table("grouped_conv")
LAYER = GroupedConvProblem(N=8, C=96, K=192, G=2, Hi=14, Wi=14, Y=3, X=3, pad_h=1, pad_w=1)
UNALIGNED = GroupedConvProblem(N=8, C=30, K=14, G=2, Hi=14, Wi=14, Y=3, X=3, pad_h=1, pad_w=1)


def terms(problem: GroupedConvProblem, kernel: Any = CONV_POOL.columns) -> Terms:
    rows = TABLE.rows_of(problem.to_dict(), kernel, variant="forward", dtype="bf16", arch=SM90)
    return terms_of(TABLE, rows)


@pytest.fixture
def estimate() -> CostModel:
    rng, programs = np.random.default_rng(0), np.unique(terms(LAYER).program)
    n_columns = len(TABLE.costs) + len(TABLE.drivers)
    return CostModel(
        programs,
        rng.uniform(0, 1, (len(programs) + 1, len(TABLE.costs))),
        rng.normal(size=n_columns),
        rng.uniform(1, 2, n_columns),
        rng.normal(size=(len(CONV_POOL) + 1, len(programs) + 1, 1 + 2 * n_columns)) / 100,
    )


@pytest.mark.parametrize("problem", [LAYER, UNALIGNED])
def test_a_pool_at_once_equals_its_kernels_bit_for_bit(estimate: CostModel, problem: GroupedConvProblem) -> None:
    at_once = estimate.log_clocks(terms(problem), np.arange(len(CONV_POOL)))
    single = [estimate.log_clocks(terms(problem, k.to_dict()), np.array([i])) for i, k in enumerate(CONV_POOL.kernels)]
    assert at_once.tobytes() == np.concatenate(single).tobytes()
    assert np.isfinite(at_once).all()


def test_programs_and_kernels_that_were_not_calibrated_are_served(estimate: CostModel) -> None:
    assert set(estimate.place(terms(LAYER).program)) == set(range(len(estimate.programs)))
    other = terms(UNALIGNED)
    assert (estimate.place(other.program) == len(estimate.programs)).all()
    unknown = estimate.log_clocks(other, np.full(len(CONV_POOL), -1))
    assert np.isfinite(unknown).all()
    assert (unknown != estimate.log_clocks(other, np.arange(len(CONV_POOL)))).any()


def test_costs_are_clocks_and_never_negative() -> None:
    for problem in (LAYER, UNALIGNED):
        seen = terms(problem)
        assert (seen.costs >= 0).all()
        assert np.isfinite(seen.costs).all()
        assert np.isfinite(seen.drivers).all()


def test_one_clock_is_the_rate_of_the_clock() -> None:
    rows = TABLE.rows_of(LAYER.to_dict(), CONV_POOL.columns, variant="forward", dtype="bf16", arch=SM90)
    assert np.exp(log_work(rows)) == pytest.approx(np.full(len(CONV_POOL), LAYER.flops * SM90.clock_mhz * 1e6 / 1e12))


def test_files_give_it_back(estimate: CostModel) -> None:
    text = json.dumps(estimate.to_dict(TABLE))
    again = CostModel.from_dict(json.loads(text), TABLE, len(CONV_POOL))
    for name in ("programs", "factors", "centre", "scale", "weights"):
        assert getattr(again, name).tobytes() == getattr(estimate, name).tobytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"terms_hash": "0"}, "fitted to other costs than this library computes"),
        ({"version": 0}, "fitted to other costs than this library computes"),
        ({"kernels": 3}, "for 3 kernels"),
        ({"centre": [1.0]}, "has the shapes"),
        ({"scale": [float("nan")] * (len(TABLE.costs) + len(TABLE.drivers))}, "must hold finite numbers only"),
    ],
)
def test_what_does_not_fit_is_refused(estimate: CostModel, change: dict[str, Any], message: str) -> None:
    with pytest.raises(ArtefactError, match=message):
        CostModel.from_dict(estimate.to_dict(TABLE) | change, TABLE, len(CONV_POOL))


@pytest.mark.parametrize("op", ["grouped_conv", "gemm"])
def test_terms_have_names_of_their_own(op: str) -> None:
    table = feature_table(op)
    for group in (table.costs, table.drivers):
        assert len({t.name for t in group}) == len(group)
    assert terms_hash(table) == terms_hash(table.select(table.names[:3]))

"""The cost model: rows are independent, unknown programs and kernels are served, and files restore it exactly."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from strategies import CONV_POOL
from tilewise.arch import load_arch
from tilewise.errors import ArtefactError
from tilewise.features import CostModel, Terms, feature_table, log_work, terms_of
from tilewise.features._cost_model import correction_columns, terms_hash
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


def test_some_rows_have_their_own_terms() -> None:
    seen, rows = terms(LAYER), np.array([5, 2, 5])
    some = seen.take(rows)
    for name in ("costs", "drivers", "program"):
        assert getattr(some, name).tobytes() == getattr(seen, name)[rows].tobytes()


def test_a_correction_has_limits_both_ways(estimate: CostModel) -> None:
    """Sums of costs alone, times or divided by at most exp(1.5)."""
    seen, kernel = terms(LAYER), np.arange(len(CONV_POOL))
    only_constant = np.arange(estimate.weights.shape[2]) == 0
    none, up, down = (
        replace(estimate, weights=np.zeros_like(estimate.weights) + weight * only_constant)
        for weight in (0.0, 9.0, -9.0)
    )
    alone = np.log((seen.costs * estimate.factors[estimate.place(seen.program)]).sum(axis=1))
    assert none.log_clocks(seen, kernel) == pytest.approx(alone)
    assert up.log_clocks(seen, kernel) == pytest.approx(alone + 1.5)
    assert down.log_clocks(seen, kernel) == pytest.approx(alone - 1.5)


def test_corrections_depend_on_shares_and_drivers_by_hand() -> None:
    costs, drivers = np.array([[30.0, 10.0], [90.0, 1.0]]), np.array([[7.0], [8.0]])
    columns = correction_columns(Terms(costs, drivers, np.zeros(2, dtype=np.int64)), np.array([40.0, 30.0]))
    assert columns == pytest.approx(np.array([[0.75, 0.25, 7.0], [2.0, 1 / 30, 8.0]]))  # 90 / 30 is beyond the most


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


def test_numbers_with_and_without_a_point_are_the_same(estimate: CostModel) -> None:
    """Other writers of JSON may turn 1.0 into 1, or 1 into 1.0; the compiled core reads arrays of these kinds only."""
    n_columns = len(estimate.centre)
    whole = {"factors": np.ones(estimate.factors.shape, dtype=int).tolist()}
    whole |= {"centre": [0] * n_columns, "scale": [1] * n_columns, "programs": estimate.programs.astype(float).tolist()}
    read = CostModel.from_dict(estimate.to_dict(TABLE) | whole, TABLE, len(CONV_POOL))
    assert {getattr(read, name).dtype.name for name in ("factors", "centre", "scale", "weights")} == {"float64"}
    assert read.programs.dtype.name == "int64"


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

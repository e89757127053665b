"""The benchmarks of the closed loop: figures computed by hand, and pages equal to the results."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from benchmarks.measuring import closed_loop, value
from benchmarks.measuring.candidate_plan import (
    COMPLETE,
    HOLDOUT,
    candidate_plan,
    in_order,
    measured_pool,
    of_kind,
    unmeasured,
    unmeasured_of,
    vendor_calls,
)
from benchmarks.networks import norms
from benchmarks.results import RESULTS, load, save

from synthetic import CONV, measurements
from tilewise.data import TargetTable
from tilewise.kernels import Pool, unsupported
from tilewise.markdown import fill
from tilewise.ops import GemmProblem, GroupedConvProblem, Problem, Target


def test_calls_follow_zipfs_law() -> None:
    problems = [GemmProblem(i, 8, 8) for i in range(1, 6)]
    calls = closed_loop.zipf(problems, np.random.default_rng(0))
    assert set(calls) == set(problems)
    assert list(calls.values()) == [closed_loop.MOST_CALLS // n for n in range(1, 6)]


def test_what_is_recovered_by_hand() -> None:
    models = {"before": {"traced": {"mean": 0.9}}, "anew": {"traced": {"mean": 0.98}}}
    assert closed_loop.recovered(models, "anew", "traced") == pytest.approx(0.8)
    assert closed_loop.recovered(models, "before", "traced") == pytest.approx(0.0)


def test_minutes_and_efficiency_by_hand() -> None:
    known, unknown = GemmProblem(1000, 1000, 1000), GemmProblem(8, 8, 8)
    judged = closed_loop.Judged({known: (0.5, 2.0)})  # 2e9 FLOPs at 1 TFLOPS: 2 ms; the oracle 1 ms
    assert judged.efficiency([known, unknown]).tolist() == [0.5, 0.0]
    calls: dict[Problem, int] = {known: 30_000, unknown: 7}
    assert judged.minutes(calls) == pytest.approx(1.0)
    assert judged.minutes(calls, oracle=True) == pytest.approx(0.5)


def test_a_curve_counts_what_fits() -> None:
    saved, seconds = np.array([6.0, 3.0, 1.0]), np.array([1.0, 1.0, 18.0])
    best, worst = (value.curve(saved, seconds, [order]) for order in ([0, 1, 2], [2, 1, 0]))
    assert best == pytest.approx([0.6, 0.9, 0.9, 0.9, 1.0])  # 5, 10, 25, 50 and 100 % of 20 seconds
    assert worst == pytest.approx([0.0, 0.0, 0.0, 0.0, 1.0])
    assert value.curve(saved, seconds, [[0, 1, 2], [2, 1, 0]]) == pytest.approx((best + worst) / 2)


@pytest.mark.parametrize(
    ("benchmark", "results", "block"), [(closed_loop, "closed_loop_*.json", "turn"), (value, "value_*.json", "value")]
)
def test_the_pages_show_the_results(benchmark: object, results: str, block: str) -> None:
    page, table = benchmark.PAGE.read_text(), benchmark.page_table  # type: ignore[attr-defined]
    found = [load(p) for p in sorted(RESULTS.glob(results))]
    assert found
    assert fill(page, {block: table(found)}) == page


@pytest.mark.parametrize(
    ("c", "k", "g", "expected"),
    [(8, 16, 1, False), (12, 16, 1, True), (16, 6, 1, True), (3, 64, 1, False), (32, 32, 16, True)],
)
def test_channels_that_2_divides_and_8_does_not(c: int, k: int, g: int, expected: bool) -> None:
    problem = GroupedConvProblem(1, c, k, g, 8, 8, 3, 3)
    assert of_kind("half_aligned", [problem], Target.parse(CONV)).tolist() == [expected]


def test_products_whose_rows_8_divides_and_16_does_not() -> None:
    sizes = [(64, 64, 24), (64, 64, 32), (64, 64, 20)]
    products = [GemmProblem(*size, layout="rcr") for size in sizes]
    assert of_kind("half_aligned", products, Target.parse("gemm_universal_bf16_sm90")).tolist() == [True, False, False]


def test_a_plan_of_measuring_again_has_every_valid_kernel_and_the_vendors_calls() -> None:
    target = Target.parse(CONV)
    table = TargetTable.of(measurements(n_problems=4, n_kernels=8, seed=1), target).labelled()
    few = Pool(target.op, target.variant, target.dtype, measured_pool(table).kernels[:2])
    for pool in (measured_pool(table), few):
        plan = candidate_plan(table, pool, [2, 0], "again", anchors=None)
        assert [item.problem for item in plan.items] == [table.problems[2], table.problems[0]]
        for item in plan.items:
            valid = {
                n
                for n, p in zip(table.rows["kernel_name"], table.problem, strict=True)
                if table.problems[p] == item.problem
            }
            calls = {call.name(target.op, target.variant, target.dtype) for call in vendor_calls(target)}
            assert {plan.pool.names[k] for k in item.kernels or ()} == (valid & set(pool.names)) | calls


class BackToFront:
    """A predictor that ranks the last kernel first."""

    def rank(self, problem: Problem, kernels: Sequence[Any], top_k: int | None) -> list[Any]:
        able = [kernel for kernel in kernels[::-1] if unsupported(kernel, problem, "forward", "bf16") is None]
        return [SimpleNamespace(kernel=kernel) for kernel in able[:top_k]]


def test_a_plan_of_unmeasured_kernels_leaves_out_those_with_a_row() -> None:
    target = Target.parse(CONV)
    table = TargetTable.of(measurements(n_problems=COMPLETE + 1, n_kernels=12, seed=1), target).labelled()
    pool, calls = measured_pool(table), {*vendor_calls(target)}
    table = table.take(table.kernel(pool) < 8)
    further = unmeasured(BackToFront(), pool, 3)  # type: ignore[arg-type] # ranks as a predictor does
    plan = candidate_plan(table, pool, range(COMPLETE + 1), "further", further, anchors=2)
    for place, item in enumerate(plan.items):
        chosen = {plan.pool.kernels[k] for k in item.kernels or ()} - calls
        able = {k for k, runs in zip(pool.kernels, pool.supported(item.problem), strict=True) if runs}
        left = [kernel for kernel in pool.kernels[8:] if kernel in able]
        of_pool = chosen & set(pool.kernels[8:])
        assert of_pool == set(left[::-1][: None if place % COMPLETE == 0 else 3])
        assert len(chosen - of_pool) == 2  # the anchors


def test_a_plan_of_pipelines_has_their_kernels_without_a_row() -> None:
    target = Target.parse(CONV)
    table = TargetTable.of(measurements(n_problems=2, n_kernels=12, seed=1), target).labelled()
    pool = measured_pool(table)
    taps = [i for i, kernel in enumerate(pool.kernels) if getattr(kernel, "pipeline", None) == "taps"]
    others = set(range(len(pool.kernels))) - set(taps)
    assert taps
    assert others
    further = unmeasured_of(["taps"], pool)
    assert further(0, table.problems[0], {*others}) == [pool.kernels[i] for i in taps]
    assert further(0, table.problems[0], {taps[0]}) == [pool.kernels[i] for i in taps[1:]]


def test_normalisations_of_several_gpus_are_joined_and_grouped(tmp_path: Path) -> None:
    def entry(ours_ms: float, activation: str = "relu") -> dict[str, Any]:
        about = {"batch": 16, "shape": [16, 8, 4, 4], "residual": True, "activation": activation}
        times = {"pytorch_ms": 2.0, "tilewise_ms": ours_ms, "pytorch_error": 0.5, "tilewise_error": 0.25}
        return about | times

    files = [tmp_path / "0.json", tmp_path / "1.json"]
    for file, entries in zip(files, ([entry(1.0)], [entry(9.0), entry(4.0, "")]), strict=True):
        save(file, {"benchmark": "norms", "machine": {}, "entries": entries})
    norms.merge(files, tmp_path / "all.json")
    anything, addition, both = norms.text(load(tmp_path / "all.json")).splitlines()[2:5]
    assert anything.startswith("| 16 | anything | 2 | 1.00 |")  # 2 / 1 and 2 / 4
    assert addition.startswith("| 16 | addition | 1 | 0.50 |")
    assert both == "| 16 | addition, relu | 1 | 2.00 | 2.00 | 2.00 | 0.2500 / 0.5000 |"


def test_held_out_problems_come_first_then_those_measured_with_half_of_the_pool() -> None:
    target = Target.parse(CONV)
    table = TargetTable.of(measurements(n_problems=40, n_kernels=8, seed=1), target).labelled()
    supported, pool = np.bincount(table.problem), measured_pool(table)
    first = np.append(True, np.diff(table.problem) > 0)  # row of each problem
    table = table.take((table.problem % 3 == 0) | first)
    held = np.zeros(40, dtype=bool)
    held[table.problem] = table.is_holdout(HOLDOUT)
    order = in_order(table, pool, seed=0, called_too=True)
    is_judged = np.bincount(table.problem) >= supported / 2
    rank = np.where(held, 0, np.where(is_judged, 1, 2))[order].tolist()
    assert sorted(order) == list(range(40))
    assert rank == sorted(rank)
    assert set(rank) == {0, 1, 2}

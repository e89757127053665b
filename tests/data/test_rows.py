"""Rows are selected by target, pool and the dispatcher's rules, in an order that breaks ties by the pool."""

from __future__ import annotations

from synthetic import CONV, kernels, measurements
from tilewise.data import is_of, is_supported, pool_index, problem_index, problems_of, sort_rows
from tilewise.kernels import Pool
from tilewise.ops import Target

TARGET = Target.parse(CONV)
FRAME = measurements(n_problems=8, n_kernels=30, failures=0)
POOL = Pool("grouped_conv", "forward", "bf16", tuple(reversed(kernels(TARGET, 30))))


def test_rows_of_a_target() -> None:
    assert is_of(FRAME, TARGET).all()
    assert not is_of(FRAME, Target("grouped_conv", "forward", "fp16", "sm90")).any()


def test_rows_are_sorted_by_problem_then_pool_and_kernels_come_once() -> None:
    rows = sort_rows(FRAME.sample(frac=2, replace=True, random_state=1), TARGET, POOL)
    problem, kernel = problem_index(rows, "grouped_conv"), pool_index(rows, POOL)
    assert (problem[1:] >= problem[:-1]).all()
    assert (kernel[1:] > kernel[:-1])[problem[1:] == problem[:-1]].all()
    assert [rows["N"].iloc[list(problem).index(i)] for i in range(len(problems_of(rows, TARGET)))] == [
        p.to_dict()["N"] for p in problems_of(rows, TARGET)
    ]


def test_kernels_outside_the_pool_come_last_and_are_never_supported() -> None:
    small = Pool("grouped_conv", "forward", "bf16", POOL.kernels[:3])
    rows = sort_rows(FRAME, TARGET, small)
    place = pool_index(rows, small)
    assert set(place[:3]) == {0, 1, 2}
    assert set(place[3:30]) == {-1}
    assert not is_supported(rows, TARGET, small)[place < 0].any()


def test_support_agrees_with_the_measured_status() -> None:
    assert (is_supported(FRAME, TARGET, POOL) == (FRAME["status"] == "ok")).all()
    assert len(is_supported(FRAME[:0], TARGET, POOL)) == 0

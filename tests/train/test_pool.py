"""The pool of a table holds the measured kernels of any architecture; a rule defines its default."""

from __future__ import annotations

import pytest

from synthetic import CONV, measurements
from tilewise.errors import DataError
from tilewise.kernels import load_pool
from tilewise.ops import Target
from tilewise.train import pool_of

FRAME = measurements(n_problems=25, n_kernels=40, failures=0)
TARGET = Target.parse(CONV)


def test_order_and_default_are_those_of_the_shipped_pool() -> None:
    shipped, pool = load_pool(TARGET), pool_of(FRAME.sample(frac=1, random_state=0), TARGET)
    assert pool.default == shipped.default
    assert set(pool.names) == set(FRAME.loc[FRAME["is_valid"], "kernel_name"])
    assert [shipped.names.index(n) for n in pool.names] == sorted(shipped.names.index(n) for n in pool.names)


def test_a_kernel_that_never_was_valid_is_not_of_the_pool() -> None:
    name = FRAME["kernel_name"].iloc[5]
    failed = FRAME["kernel_name"] == name
    frame = FRAME.assign(is_valid=FRAME["is_valid"] & ~failed)
    assert name not in pool_of(frame, TARGET).names


def test_kernels_that_are_not_shipped_follow_by_name() -> None:
    other = FRAME.assign(num_stages=FRAME["num_stages"].where(FRAME["tile_m"] < 256, 7))
    other["kernel_name"] = [
        n if m < 256 else n.replace("_s3", "_s7").replace("_s4", "_s7").replace("_s2", "_s7")
        for n, m in zip(other["kernel_name"], other["tile_m"], strict=True)
    ]
    shipped = set(load_pool(TARGET).names)
    tail = [n for n in pool_of(other, TARGET).names if n not in shipped]
    assert tail
    assert tail == sorted(tail)
    assert pool_of(other, TARGET).names[-len(tail) :] == tuple(tail)


def test_without_a_shipped_default_the_most_widely_valid_kernel_leads() -> None:
    frame = measurements("grouped_conv_forward_bf16_gfx950", n_problems=25, n_kernels=20, failures=0)
    wide = frame["kernel_name"].iloc[7]
    frame["is_valid"] &= (frame["kernel_name"] == wide) | (frame.index // 20 % 5 > 0)
    pool = pool_of(frame, Target.parse("grouped_conv_forward_bf16_gfx950"))
    assert pool.names[0] == wide
    assert pool.names[1:] == tuple(sorted(pool.names[1:]))


def test_among_equally_valid_kernels_the_most_often_fastest_leads() -> None:
    target = Target.parse("grouped_conv_forward_bf16_gfx942")
    frame = measurements(target, n_problems=25, n_kernels=20, failures=0)
    valid = frame[frame["is_valid"]]
    wins = valid.loc[valid.groupby(valid.index // 20)["tflops"].idxmax(), "kernel_name"].value_counts()
    counts = valid["kernel_name"].value_counts()
    widest = counts.index[counts == counts.max()]
    assert len(widest) > 1
    assert wins[pool_of(frame, target).names[0]] == wins.reindex(widest).max()


def test_a_table_without_valid_rows_is_refused() -> None:
    with pytest.raises(DataError, match=f"no valid row of {CONV}"):
        pool_of(FRAME.assign(is_valid=False), TARGET)

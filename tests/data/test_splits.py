"""The holdout rule may never change: these keys and numbers are its specification."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from strategies import conv_problems
from synthetic import CONV, measurements, problems
from tilewise.data import group_keys, held_out, holdout_mask, is_primary, split_keys, split_rule
from tilewise.ops import GroupedConvProblem, Target

FRAME = measurements(n_problems=5, n_kernels=6, repeats=2)


@pytest.mark.parametrize("target", [CONV, "gemm_universal_bf16_sm90"])
def test_keys_of_a_table_are_those_of_its_problems(target: str) -> None:
    shapes = problems(Target.parse(target), 20)
    columns = pd.DataFrame([p.to_dict() for p in shapes])
    assert group_keys(Target.parse(target).op, columns).tolist() == [list(p.group_key) for p in shapes]


def test_gemm_keys_leave_layout_and_split_k_out() -> None:
    columns = {"M": [1, 1], "N": [2, 2], "K": [3, 3], "layout": ["rcr", "rrr"], "split_k": [1, 4]}
    assert group_keys("gemm", columns).tolist() == [[1, 2, 3], [1, 2, 3]]


def test_the_rule_is_the_one_that_was_fixed_in_advance() -> None:
    digest = hashlib.sha256(b"tilewise-holdout-1:gemm:128,256,512").digest()
    position = int.from_bytes(digest[:8], "big") / 2**64
    key = [[128, 256, 512]]
    assert holdout_mask("gemm", key, position + 1e-9).tolist() == [True]
    assert holdout_mask("gemm", key, position - 1e-9).tolist() == [False]
    assert position == pytest.approx(0.0008235788555, abs=1e-12)


@pytest.mark.long
@given(
    st.lists(st.tuples(st.integers(1, 9999), st.integers(1, 9999)), min_size=1, max_size=30), st.permutations(range(5))
)
def test_a_key_is_held_out_whatever_else_is_in_the_table(keys: list[tuple[int, int]], order: list[int]) -> None:
    together = holdout_mask("gemm", keys, 0.5)
    alone = [bool(holdout_mask("gemm", [key], 0.5)[0]) for key in keys]
    assert together.tolist() == alone


def test_a_larger_fraction_holds_out_more_and_never_other_keys() -> None:
    keys = np.arange(3000).reshape(-1, 3)
    small, large = holdout_mask("gemm", keys, 0.1), holdout_mask("gemm", keys, 0.3)
    assert not (small & ~large).any()
    assert small.mean() == pytest.approx(0.1, abs=0.03)
    assert large.mean() == pytest.approx(0.3, abs=0.04)
    assert not holdout_mask("gemm", keys, 0).any()
    assert holdout_mask("gemm", keys, 1).all()


@pytest.mark.parametrize(
    ("op", "key", "position"),
    [
        # The first 8 bytes of SHA-256, big-endian, / 2^64, by `printf tilewise-holdout-1:gemm:1,1,1 | sha256sum`.
        ("gemm", [1, 1, 1], 0x93C183A92CD199A1),
        ("gemm", [4096, 4096, 4096], 0xE51F81F63EF74BD5),
        ("grouped_conv", [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17, 18, 19], 0x08EA79022CF2C7DC),
    ],
)
def test_the_place_of_a_key_is_fixed_forever(op: str, key: list[int], position: int) -> None:
    """A key is held out by every fraction above its place, and not by its place itself."""
    assert holdout_mask(op, [key], position / 2**64).tolist() == [False]
    assert holdout_mask(op, [key], math.nextafter(position / 2**64, 1)).tolist() == [True]


def test_the_share_that_is_held_out_by_hand() -> None:
    """Of the cubes 1 to 1000, exactly these many lie below the committed fractions."""
    cubes = np.repeat(np.arange(1, 1001)[:, None], 3, axis=1)
    assert [int(holdout_mask("gemm", cubes, f).sum()) for f in (0.1, 0.18, 0.2)] == [93, 169, 189]


def test_no_keys_give_no_mask() -> None:
    assert holdout_mask("gemm", np.empty((0, 3)), 0.5).shape == (0,)


SM90, GFX942, GFX90A = (
    Target.parse(f"grouped_conv_{rest}")
    for rest in ("forward_bf16_sm90", "bwd_data_fp32_gfx942", "forward_bf16_gfx90a")
)


@pytest.mark.long
@given(layers=st.lists(conv_problems(dims=(2,)), min_size=1, max_size=20), fraction=st.floats(0, 1))
def test_a_layer_lies_on_one_side_on_archs_that_split_by_layer(
    layers: list[GroupedConvProblem], fraction: float
) -> None:
    """Whatever the batch, the layout, the direction, the dtype and the arch."""
    keys = np.array([p.group_key for p in layers])
    batches = [np.concatenate([np.full((len(keys), 1), n), keys[:, 1:]], axis=1) for n in (1, 32, 999)]
    for other in batches:
        for target in (GFX942, GFX90A):
            assert (held_out(target, other, fraction) == held_out(GFX942, keys, fraction)).all()


def test_other_archs_hold_out_shapes() -> None:
    keys = np.array([GroupedConvProblem(n, 64, 64, 1, 28, 28, 3, 3).group_key for n in range(1, 300)])
    assert (held_out(SM90, keys, 0.2) == holdout_mask("grouped_conv", keys, 0.2)).all()
    assert 30 < held_out(SM90, keys, 0.2).sum() < 90
    assert len(np.unique(held_out(GFX942, keys, 0.2))) == 1
    assert (split_keys(Target.parse("gemm_universal_bf16_gfx942"), [[1, 2, 3]]) == [[1, 2, 3]]).all()


def test_the_rule_is_told_in_words() -> None:
    assert split_rule(GFX942, 0.18, 5) == (
        "holdout: 18% of the layers by hash (tilewise-holdout-1); 5-fold GroupKFold on the layer for the rest"
    )
    assert split_rule(SM90, 0.18) == "holdout: 18% of the group keys by hash (tilewise-holdout-1)"
    assert split_rule(SM90, 0.255) == "holdout: 26% of the group keys by hash (tilewise-holdout-1)"
    assert split_rule(SM90, 0.18, 5).endswith("; 5-fold GroupKFold on the group key for the rest")


def primary_runs(frame: pd.DataFrame) -> list[str]:
    return sorted(set(frame.loc[is_primary(frame, "grouped_conv"), "run_id"]))


def test_the_run_with_most_valid_rows_is_primary() -> None:
    one = FRAME[(FRAME["N"] == FRAME["N"].iloc[0]) & (FRAME["C"] == FRAME["C"].iloc[0])].reset_index(drop=True)
    assert primary_runs(one.drop(index=0)) == ["synthetic-2"]
    assert primary_runs(one) == ["synthetic-1"]  # a tie: the earlier


def test_ties_go_to_the_earlier_then_to_the_name_and_unknown_times_come_last() -> None:
    repeated = FRAME[FRAME["run_id"] == "synthetic-2"]
    pair = pd.concat([repeated.assign(run_id="b"), repeated.assign(run_id="a")], ignore_index=True)
    assert primary_runs(pair) == ["a"]
    early = pair.assign(measured_at=np.where(pair["run_id"] == "b", "2024-01-01T00:00:00Z", pair["measured_at"]))
    assert primary_runs(early) == ["b"]
    assert primary_runs(pair.assign(measured_at=pair["measured_at"].where(pair["run_id"] == "b"))) == ["b"]


def test_an_unknown_time_comes_after_any_known_one() -> None:
    repeated = FRAME[FRAME["run_id"] == "synthetic-2"]
    runs = [repeated.assign(run_id="a", measured_at=None), repeated.assign(run_id="b", measured_at="Z"),
            repeated.assign(run_id="c", measured_at="zulu")]  # fmt: skip
    assert primary_runs(pd.concat(runs, ignore_index=True)) == ["b"]
    assert primary_runs(pd.concat([runs[0], runs[2]], ignore_index=True)) == ["c"]


def test_keys_are_integers_whatever_the_columns_are() -> None:
    columns = {name: np.array([2, 4], dtype=np.float64) for name in ("M", "N", "K")}
    keys = group_keys("gemm", {**columns, "layout": ["rcr", "rcr"], "split_k": [1, 1]})
    assert keys.dtype == np.int64
    assert keys.tolist() == [[2, 2, 2], [4, 4, 4]]


def test_a_run_is_as_early_as_its_first_row() -> None:
    """Run b has rows before and after those of run a, so b comes first although it ends last."""
    once = FRAME[FRAME["run_id"] == "synthetic-2"]
    days = np.where(np.arange(len(once)) % 2, "2024-01-09T00:00:00Z", "2024-01-01T00:00:00Z")
    b = once.assign(run_id="b", measured_at=days)
    a = once.assign(run_id="a", measured_at="2024-01-05T00:00:00Z")
    assert primary_runs(pd.concat([a, b], ignore_index=True)) == ["b"]


def test_each_problem_has_one_primary_run() -> None:
    mask = is_primary(FRAME, "grouped_conv")
    assert mask.sum() == 5 * 6
    assert set(FRAME.loc[~mask, "run_id"]) == {"synthetic-2"}


def test_no_rows_have_an_empty_mask() -> None:
    assert holdout_mask("gemm", np.zeros((0, 3)), 0.5).dtype == bool

"""Slice labels are readable and follow from the problem alone."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pandas as pd
import pytest

from own_op import DEFINITION, registered
from tilewise.arch import load_arch
from tilewise.evaluate import problem_groups, slice_labels, slice_names, sliced_metrics
from tilewise.evaluate._slices import CK_M_SIZE, SLICES, SLICES_OF_OP, with_ck_slices
from tilewise.ops import OPS, VARIANT, GemmProblem, GroupedConvProblem, Problem, Target

CONV, GEMM = Target.parse("grouped_conv_forward_bf16_sm90"), Target.parse("gemm_universal_bf16_sm90")
SM90 = load_arch("sm90")
VARIANTS = ("forward", "bwd_data", "bwd_weight")


def conv(**changes: int) -> GroupedConvProblem:
    layer: dict[str, Any] = {"N": 8, "C": 64, "K": 64, "G": 1, "Hi": 28, "Wi": 28, "Y": 3, "X": 3}
    return GroupedConvProblem(**(layer | changes))


@pytest.mark.parametrize(
    ("problem", "family"),
    [
        (conv(), "3x3"),
        (conv(Y=1, X=1), "1x1"),
        (conv(Y=1, X=1, stride_h=2, stride_w=2), "1x1/2"),
        (conv(Y=7, X=1), "7x1"),
        (conv(G=4), "grouped"),
        (conv(G=64), "depthwise"),
        (conv(G=64, stride_w=2), "depthwise/2"),
        (conv(Di=8, Z=3), "3x3x3"),
        (GemmProblem(8, 8, 8), "gemm"),
    ],
)
def test_families(problem: Problem, family: str) -> None:
    target = CONV if problem.op == "grouped_conv" else GEMM
    assert slice_labels([problem], target, SM90)["family"].tolist() == [family]


def test_sizes_and_bounds() -> None:
    small, large = GemmProblem(64, 64, 64), GemmProblem(8192, 8192, 8192)
    labels = slice_labels([small, large], GEMM, SM90)
    assert tuple(labels.columns) == SLICES
    assert labels["size"].tolist() == ["tiny", "large"]
    assert labels["bound"].tolist() == ["memory", "compute"]


def test_the_bound_is_where_computing_takes_as_long_as_loading() -> None:
    problem = GemmProblem(512, 512, 512)
    intensity = problem.flops / problem.min_bytes("bf16")  # FLOP/byte
    for factor, bound in ((0.9999, "memory"), (1.0001, "compute")):
        bandwidth = factor * SM90.peak("bf16") * 1e3 / intensity
        arch = replace(SM90, dram_gb_s=bandwidth)
        assert slice_labels([problem], GEMM, arch)["bound"].tolist() == [bound]


@pytest.mark.parametrize(("m", "size"), [(1, "tiny"), (63, "tiny"), (64, "small"), (1024, "medium"), (16384, "large")])
def test_m_is_graded(m: int, size: str) -> None:
    assert slice_labels([GemmProblem(m, 64, 64)], GEMM, SM90)["m_size"].tolist() == [size]


def test_m_of_a_convolution_is_that_of_its_implicit_product() -> None:
    problem = conv(N=1, K=32, Hi=200, Wi=200)
    of = {v: slice_labels([problem], Target("grouped_conv", v, "bf16", "sm90"), SM90)["m_size"][0] for v in VARIANTS}
    assert of == {"forward": "large", "bwd_data": "large", "bwd_weight": "tiny"}


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        (conv(), ("3x3", "dense", "1", "2D")),
        (conv(Y=1, X=1, stride_w=2), ("1x1", "dense", "2", "2D")),
        (conv(G=4, Y=5), ("other", "grouped", "1", "2D")),
        (conv(G=64, Di=4), ("other", "depthwise", "1", "3D")),
        (conv(Di=4, Z=3, stride_d=3), ("other", "dense", "3", "3D")),
    ],
)
def test_convolutions_are_told_apart(problem: Problem, expected: tuple[str, ...]) -> None:
    labels = slice_labels([problem], CONV, SM90)
    assert tuple(labels[n][0] for n in SLICES_OF_OP["grouped_conv"]) == expected


@pytest.mark.parametrize("flops", [DEFINITION.flops, ""])
def test_an_op_of_a_user_is_sliced_by_its_flags_and_categories(flops: str) -> None:
    with registered(replace(DEFINITION, flops=flops)) as definition:
        target = Target(definition.name, VARIANT, "bf16", "sm90")
        sizes = [(8, "rcr", False), (8192, "rrr", True)]
        problems = [
            OPS[target.op].from_dict({"M": n, "N": n, "K": n, "layout": layout, "causal": causal})
            for n, layout, causal in sizes
        ]
        labels = slice_labels(problems, target, SM90)
        assert slice_names(target.op, labels) == tuple(labels.columns)
    size = {"size": ["tiny", "large"]} if flops else {}
    assert labels.to_dict("list") == {
        "family": ["my_matmul"] * 2,
        **size,
        "layout": ["rcr", "rrr"],
        "causal": ["0", "1"],
    }


def test_ck_s_bounds_of_m_are_shown_beside_ours() -> None:
    table = pd.DataFrame({"M": [7, 8, 127, 128, 1023, 1024], "size": ["tiny"] * 6})
    shown = with_ck_slices(table, "gemm")
    assert shown[CK_M_SIZE].tolist() == ["tiny", "small", "small", "medium", "medium", "large"]
    assert slice_names("gemm", shown) == ("size", CK_M_SIZE)
    assert with_ck_slices(table, "grouped_conv") is table


def test_no_problems_no_labels() -> None:
    assert slice_labels([], GEMM, SM90).shape == (0, len(SLICES))


TABLE = pd.DataFrame(
    {
        "size": ["large", "tiny", "large", "tiny", "medium"],
        "layout": ["rcr", "rrr", "rcr", "rcr", "rcr"],
        "bound": ["memory"] * 5,
        "efficiency": [1.0, 0.5, 0.8, 0.7, 0.9],
    }
)


def test_groups_come_in_a_readable_order_and_a_label_of_one_value_tells_nothing() -> None:
    assert slice_names("gemm", TABLE) == ("size", "bound", "layout")
    found = [
        (name, value, members.tolist()) for name, value, members in problem_groups(TABLE, slice_names("gemm", TABLE))
    ]
    assert found == [
        ("size", "tiny", [1, 3]),
        ("size", "medium", [4]),
        ("size", "large", [0, 2]),
        ("layout", "rcr", [0, 2, 3, 4]),
        ("layout", "rrr", [1]),
    ]


def test_values_without_a_grade_come_first() -> None:
    table = pd.DataFrame({"size": ["large", "huge", "tiny"]})
    assert [value for _, value, _ in problem_groups(table, ["size"])] == ["huge", "tiny", "large"]


def test_figures_of_a_group_are_those_of_its_problems() -> None:
    tiny = sliced_metrics(TABLE, ["size"])[0]
    assert (tiny["slice"], tiny["value"], tiny["n_problems"]) == ("size", "tiny", 2)
    assert tiny["mean_efficiency"] == tiny["median_efficiency"] == pytest.approx(0.6)
    assert tiny["min_efficiency"] == 0.5
    assert tiny["p10_efficiency"] == pytest.approx(0.52)
    assert [figures["value"] for figures in sliced_metrics(TABLE, ["layout", "bound"])] == ["rcr", "rrr"]
    assert [figures["value"] for figures in sliced_metrics(TABLE, ["layout", "bound"], 1)] == ["rcr", "rrr", "memory"]
    assert [figures["slice"] for figures in sliced_metrics(TABLE, ["layout", "size"], 3)] == ["size"] * 3


def test_an_op_without_labels_of_its_own_is_sliced_all_the_same() -> None:
    assert slice_names("scan", TABLE) == ("size", "bound")

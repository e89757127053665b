"""Slice labels are readable and follow from the problem alone."""

from __future__ import annotations

import pytest

from tilewise.arch import load_arch
from tilewise.evaluate.slices import SLICES, slice_labels
from tilewise.ops import GemmProblem, GroupedConvProblem, Problem


def conv(**changes: int) -> GroupedConvProblem:
    return GroupedConvProblem(**({"N": 8, "C": 64, "K": 64, "G": 1, "Hi": 28, "Wi": 28, "Y": 3, "X": 3} | changes))


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
    assert slice_labels([problem], "bf16", load_arch("sm90"))["family"].tolist() == [family]


def test_sizes_and_bounds() -> None:
    small, large = GemmProblem(64, 64, 64), GemmProblem(8192, 8192, 8192)
    labels = slice_labels([small, large], "bf16", load_arch("sm90"))
    assert tuple(labels.columns) == SLICES
    assert labels["size"].tolist() == ["tiny", "large"]
    assert labels["bound"].tolist() == ["memory", "compute"]


def test_no_problems_no_labels() -> None:
    assert slice_labels([], "bf16", load_arch("sm90")).shape == (0, 3)

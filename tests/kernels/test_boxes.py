"""The boxes of pixels that tiles take: they cover a grid, arrays agree with ints, and axes are joined without loss."""

from __future__ import annotations

from math import prod
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from strategies import conv_problems
from tilewise.kernels.triton import Kernel, tapwise_columns
from tilewise.kernels.triton._boxes import (
    BOX_PIXELS,
    Grid,
    box_of,
    boxes,
    fewest_pixels,
    grid_of,
    joined,
    padded_pixels,
)
from tilewise.ops import GroupedConvProblem

GRIDS = st.builds(Grid, *[st.integers(1, 130)] * 4)


@given(GRIDS, st.sampled_from(BOX_PIXELS))
def test_a_box_covers_the_grid(grid: Grid, pixels: int) -> None:
    box = box_of(grid, pixels)
    assert prod(box) == pixels
    covered = padded_pixels(grid, box)
    assert covered % pixels == 0
    assert prod(grid) <= covered == min(padded_pixels(grid, other) for other in boxes(pixels))


@given(st.lists(GRIDS, min_size=1, max_size=4))
def test_arrays_and_ints_agree(grids: list[Grid]) -> None:
    columns = Grid(*(np.array(sizes)[:, None] for sizes in zip(*grids, strict=True)))
    found = fewest_pixels(columns, np.array(BOX_PIXELS))
    right = [[padded_pixels(grid, box_of(grid, pixels)) for pixels in BOX_PIXELS] for grid in grids]
    assert found.tolist() == right


@pytest.mark.parametrize(
    ("grid", "pixels", "box"),
    [
        (Grid(1, 1, 1, 6272), 128, (1, 1, 128)),
        (Grid(1, 8, 56, 56), 128, (2, 8, 8)),
        (Grid(1, 1, 48, 48), 256, (1, 16, 16)),
        (Grid(1, 8, 4, 4), 64, (4, 4, 4)),
        (Grid(1, 1, 4, 64), 256, (1, 4, 64)),
    ],
)
def test_boxes_that_fit(grid: Grid, pixels: int, box: tuple[int, ...]) -> None:
    assert box_of(grid, pixels) == box


@given(conv_problems(), st.sampled_from(GroupedConvProblem.variants))
def test_joining_axes_loses_no_pixel(p: GroupedConvProblem, variant: str) -> None:
    out = p.output_sizes
    assert prod(joined(p, *out)) == p.N * prod(out)
    if variant != "bwd_data":
        assert grid_of(p, variant) == joined(p, *out)
    else:
        assume(p.stride_d == p.stride_h == p.stride_w == 1)
        assert prod(grid_of(p, variant)) == p.N * p.Di * p.Hi * p.Wi


def test_axes_that_a_filter_reaches_along_stay() -> None:
    flat = GroupedConvProblem(8, 64, 64, 1, 14, 14, 1, 1)
    rows = GroupedConvProblem(8, 64, 64, 1, 14, 14, 1, 3, pad_w=1)
    deep = GroupedConvProblem(8, 64, 64, 1, 14, 14, 1, 1, Di=4, Z=3, pad_d=1)
    strided = GroupedConvProblem(8, 64, 64, 1, 14, 14, 1, 1, 2, 2)
    assert [tuple(map(int, grid_of(p, "forward"))) for p in (flat, rows, deep, strided)] == [
        (1, 1, 1, 1568),
        (1, 1, 112, 14),
        (8, 4, 14, 14),
        (1, 8, 7, 7),
    ]
    columns = {n: np.array([getattr(p, n) for p in (flat, rows, deep, strided)]) for n in flat.column_names()}
    assert np.array(grid_of(SimpleNamespace(**columns), "forward")).T.tolist() == [
        [1, 1, 1, 1568], [1, 1, 112, 14], [8, 4, 14, 14], [1, 8, 7, 7],
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("config", "layer", "columns"),
    [
        ("64x64x64_taps_w4_s3_g1_k1", {"C": 80}, 9 * 2 * 64),
        ("64x96x64_taps_w4_s3_g1_k1", {"C": 80}, 9 * 96),  # not a box: no taps side by side
        ("64x64x64_box_w4_s3_g1_k1", {"C": 80}, 9 * 2 * 64),
        ("64x96x64_box_w4_s3_g1_k1", {"C": 80}, 9 * 3 * 32),
        ("64x96x64_box_w4_s3_g1_k1", {"C": 80, "G": 2}, 9 * 2 * 32),
        ("64x192x64_box_w4_s3_g1_k1", {"C": 80, "X": 5}, 15 * 2 * 64),
        ("64x192x64_box_w4_s3_g1_k1", {"C": 64, "X": 1, "Y": 1}, 3 * 64),
        ("64x64x64_relay_w8_s3_g1_k1", {"C": 80}, 9 * 2 * 64),
        ("128x128x64_relay_w8_s3_g1_k1", {}, 5 * 128),  # nine pieces of 64 channels
        ("128x256x64_relay_w8_s3_g1_k1", {"C": 136, "X": 5}, 12 * 256),  # 15 x 3
    ],
)
def test_columns_of_a_filter_gradient_by_taps(config: str, layer: dict[str, Any], columns: int) -> None:
    p = GroupedConvProblem(**{"N": 1, "C": 64, "K": 64, "G": 1, "Hi": 9, "Wi": 9, "Y": 3, "X": 3, **layer})
    kernel = Kernel.from_config(config)
    assert tapwise_columns(kernel, p) == columns
    as_columns = SimpleNamespace(**{n: np.array([v]) for n, v in kernel.to_dict().items()})
    assert tapwise_columns(as_columns, p).tolist() == [columns]

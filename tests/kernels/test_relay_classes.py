"""Residue classes of ``relay``'s input gradient have exactly the taps that reach them, the most in the first class."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
import triton
import triton.language as tl
from hypothesis import given, settings
from hypothesis import strategies as st

from tilewise.kernels.triton.programs import interpreted
from tilewise.kernels.triton.programs.conv.gluon._classes import class_of, class_steps, class_tap

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.skipif(not interpreted(), reason="a GPU is there: the kernels are tested on it")

MOST = 64  # taps of a class in this test


@triton.jit  # type: ignore[untyped-decorator]
def _list_taps(  # type: ignore[no-untyped-def]
    found, taps, tiles, Z, Y, X, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    MOST: tl.constexpr,
):  # fmt: skip
    """Write the tile, both residues and the steps of an item to `found`, then each tap with its reach to `taps`."""
    filters = (0, 0, Y, X, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w)
    item = tl.program_id(0)
    tile, residue_h, residue_w = class_of(item, tiles, filters)
    steps = class_steps(item, tiles, Z, 1, filters)
    tl.store(found + item * 4, tile)
    tl.store(found + item * 4 + 1, residue_h)
    tl.store(found + item * 4 + 2, residue_w)
    tl.store(found + item * 4 + 3, steps)
    if steps > 0:
        number = tl.arange(0, MOST)
        tap, d, h, w = class_tap(number, residue_h, residue_w, filters)
        row = taps + (item * MOST + number) * 4
        tl.store(row, tap)
        tl.store(row + 1, d + number * 0)
        tl.store(row + 2, h)
        tl.store(row + 3, w)


def taps_along(residue: int, size: int, stride: int, pad: int, dilation: int) -> dict[int, int]:
    """Return the taps that reach a residue, and the output pixel of each less that of the residue's first pixel."""
    return {
        tap: (residue + pad - tap * dilation) // stride
        for tap in range(size)
        if (residue + pad - tap * dilation) % stride == 0
    }


@pytest.mark.long
@settings(max_examples=25)
@given(
    st.fixed_dictionaries({
        "Z": st.integers(1, 2), "Y": st.integers(1, 5), "X": st.integers(1, 5),
        "stride_h": st.integers(1, 2), "stride_w": st.integers(1, 2),
        "pad_d": st.integers(0, 1), "pad_h": st.integers(0, 4), "pad_w": st.integers(0, 4),
        "dilation_d": st.integers(1, 2), "dilation_h": st.integers(1, 4), "dilation_w": st.integers(1, 4),
    })
)  # fmt: skip
def test_classes_have_the_taps_that_reach_them(sizes: dict[str, Any]) -> None:
    p, tiles = sizes, 2
    items = tiles * p["stride_h"] * p["stride_w"]
    found, taps = (torch.zeros(items, *shape, dtype=torch.int32) for shape in ((4,), (MOST, 4)))
    _list_taps[(items,)](found, taps, tiles, **p, MOST=MOST)
    seen = []
    for (tile, residue_h, residue_w, steps), rows in zip(found.tolist(), taps.tolist(), strict=True):
        seen.append((tile, residue_h, residue_w))
        right = {
            ((z * p["Y"] + y) * p["X"] + x, p["pad_d"] - z * p["dilation_d"], h, w)
            for z in range(p["Z"])
            for y, h in taps_along(residue_h, p["Y"], p["stride_h"], p["pad_h"], p["dilation_h"]).items()
            for x, w in taps_along(residue_w, p["X"], p["stride_w"], p["pad_w"], p["dilation_w"]).items()
        }
        assert steps == len(right)
        assert {tuple(row) for row in rows[:steps]} == right
    assert sorted(seen) == sorted(product(range(tiles), range(p["stride_h"]), range(p["stride_w"])))
    assert found[0, 3] == found[:, 3].max()

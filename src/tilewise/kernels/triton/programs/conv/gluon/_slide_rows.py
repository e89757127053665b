"""Code that the programs of ``slide`` share: rows of pixels, the ring that keeps them, and the warp that loads them.

A row is COLUMNS pixels of each of IMAGES images, with the channels of a tile's groups. While a tile slides down an
image, its rings keep the rows that lie under the filter's rows of taps, once for each column of taps.
"""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

from typing import TYPE_CHECKING

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier, tma

from tilewise.kernels.triton._boxes import row_box
from tilewise.kernels.triton.programs._program import described
from tilewise.ops import GroupedConvProblem

if TYPE_CHECKING:
    from torch import Tensor
    from triton.tools.tensor_descriptor import TensorDescriptor


@gluon.jit
def place_of_row(row, D, H, W, IMAGES: gl.constexpr, COLUMNS: gl.constexpr):
    """Return where a row lies: (first image, d, h, first column)."""
    wide = gl.cdiv(W, COLUMNS)
    column = row // H
    image = column // wide
    return image // D * IMAGES, image % D, row % H, column % wide * COLUMNS


@gluon.jit
def is_new(row, begin, H):
    """Return whether no row before is in the ring: a share begins, or an image."""
    return (row == begin) | (row % H == 0)


@gluon.jit
def is_last(row, end, H):
    """Return whether the next row shares nothing with this one."""
    return (row % H == H - 1) | (row == end - 1)


@gluon.jit
def slot_of(SET: gl.constexpr, SIDE: gl.constexpr, row, WIDE: gl.constexpr, ROWS: gl.constexpr):
    """Return where a ring keeps a row of a set of groups under a column of taps; `row` counts the loaded rows."""
    return (SET * WIDE + SIDE) * ROWS + row % ROWS


@gluon.jit
def load_row(image, ring, ready, empty, slot, parity, n, d, h, w, c):
    """Load a row into a slot as soon as it is empty."""
    shape: gl.constexpr = image.block_type.shape
    mbarrier.wait(empty.index(slot), parity)
    mbarrier.expect(ready.index(slot), image.block_type.nbytes)
    box = ring.index(slot)._reinterpret(image.dtype, shape, image.layout)
    tma.async_copy_global_to_shared(image, [n, d, h, w, c], ready.index(slot), box)


@gluon.jit
def load_under(
    x, ring, ready, empty, loaded, first, n, d, h, w, c, C, stride_w, dilation_h, dilation_w,
    SET: gl.constexpr, HIGH: gl.constexpr, WIDE: gl.constexpr, ROWS: gl.constexpr,
):  # fmt: skip
    """Load the rows of the input under the rows of taps from `first` on, whose column 0 begins at (h, w).

    Rows of a stride are read from one column of residues, whose channels lie side by side. Returns the rows loaded.
    """
    for tap in range(first, HIGH):
        for side in gl.static_range(WIDE):
            at = w + side * dilation_w
            column = at // stride_w - (at % stride_w < 0).to(gl.int32)  # the next multiple below
            residue = at - column * stride_w
            load_row(
                x, ring, ready, empty, slot_of(SET, side, loaded, WIDE, ROWS), (loaded // ROWS & 1) ^ 1,
                n, d, h + tap * dilation_h, column, residue * C + c,
            )  # fmt: skip
        loaded += 1
    return loaded


def row_constants(p: GroupedConvProblem, variant: str, high: int) -> tuple[tuple[str, int], ...]:
    """Return the constants of rows by name; `high` is the number of a tile's rows of taps."""
    images, columns = row_box(p, variant)
    together = 1 if variant == "bwd_data" else p.stride_h
    return ("IMAGES", images), ("COLUMNS", columns), ("ADVANCE", high if p.dilation_h > 1 else min(together, high))


def row_block(constants: tuple[tuple[str, int], ...], channels: int) -> tuple[int, ...]:
    """Return the block that one load of a row brings, of so many channels."""
    sizes = dict(constants)
    return sizes["IMAGES"], 1, 1, sizes["COLUMNS"], channels


def described_input(x: Tensor, p: GroupedConvProblem, block: tuple[int, ...]) -> TensorDescriptor:
    """Return the descriptor of the input of which :func:`load_under` loads rows."""
    shape = (p.N, p.Di, p.Hi, p.Wi // p.stride_w, p.stride_w * p.C)
    return described(x, shape, block)

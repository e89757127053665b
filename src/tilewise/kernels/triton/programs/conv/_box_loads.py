"""Code that the programs of the pipeline ``box`` share: boxes of pixels, and descriptors that load them.

A strided filter reads every stride-th pixel, which makes each residue an axis of its own in the descriptor.
"""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from tilewise.kernels.triton._boxes import Box, Grid, joined
from tilewise.kernels.triton.programs._program import described
from tilewise.kernels.triton.programs.conv._shared import pixels, reach_of
from tilewise.ops import GroupedConvProblem

if TYPE_CHECKING:
    from torch import Tensor


@triton.jit
def boxes_over(N, D, H, W, BOX_D: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr):
    """Return the number of boxes that cover the images."""
    return N * tl.cdiv(D, BOX_D) * tl.cdiv(H, BOX_H) * tl.cdiv(W, BOX_W)


@triton.jit
def start_of(box, D, H, W, BOX_D: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr):
    """Return the first pixel of a box: (n, d, h, w)."""
    n, d, h, w = pixels(box, tl.cdiv(D, BOX_D), tl.cdiv(H, BOX_H), tl.cdiv(W, BOX_W))
    return n, d * BOX_D, h * BOX_H, w * BOX_W


@triton.jit
def next_start(n, d, h, w, D, H, W, BOX_D: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr):
    """Return the first pixel of the box after the one at (n, d, h, w), without the divisions of :func:`start_of`."""
    w += BOX_W
    h = tl.where(w < W, h, h + BOX_H)
    w = tl.where(w < W, w, 0)
    d = tl.where(h < H, d, d + BOX_D)
    h = tl.where(h < H, h, 0)
    n = tl.where(d < D, n, n + 1)
    return n, tl.where(d < D, d, 0), h, w


@triton.jit
def box_pixels(d, h, w, BOX_D: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr):
    """Return the coordinates of a box's pixels."""
    lane = tl.arange(0, BOX_D * BOX_H * BOX_W)
    return d + lane // (BOX_H * BOX_W), h + lane // BOX_W % BOX_H, w + lane % BOX_W


@triton.jit
def load_input(
    x, n, d, h, w, tap, c, C, Y, X, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    STRIDED: tl.constexpr,
):  # fmt: skip
    """Load the input that a filter tap meets under the box of output pixels at (d, h, w), from channel `c` on."""
    rd, rh, rw = reach_of(tap, Y, X, dilation_d, dilation_h, dilation_w)
    if STRIDED:  # (images, rows / stride, stride, columns / stride, stride x channels)
        sh = rh + pad_h * (stride_h - 1)  # not negative, and so many whole strides too far
        sw = rw + pad_w * (stride_w - 1)
        at = [d, h + sh // stride_h - pad_h, sh % stride_h, w + sw // stride_w - pad_w, sw % stride_w * C + c]
    else:
        at = [n, d + rd - pad_d, h + rh - pad_h, w + rw - pad_w, c]
    return x.load(at)


def is_strided(p: GroupedConvProblem) -> bool:
    """Return whether neighbouring output pixels meet input pixels that are not neighbours in a row or column."""
    return max(p.stride_h, p.stride_w) > 1


def sides(box: Box) -> dict[str, int]:
    """Return a box as constants of a function."""
    return {"BOX_D": box.d, "BOX_H": box.h, "BOX_W": box.w}


def named(grid: Grid, *names: str) -> dict[str, int]:
    """Return a grid as size arguments of a function."""
    return dict(zip(names, map(int, grid), strict=True))


def input_block(box: Box, channels: int, strided: bool) -> tuple[int, ...]:
    """Return the block that one load of the input brings; :func:`load_input` names the axes."""
    return (box.d, box.h, 1, box.w, channels) if strided else (1, *box, channels)


def described_input(x: Tensor, p: GroupedConvProblem, block: tuple[int, ...]) -> TensorDescriptor:
    """Return the descriptor of the input whose loads bring `block`, from :func:`input_block`."""
    n, d, h, w = map(int, joined(p, p.Di, p.Hi, p.Wi))
    shape = (n, d, h, w, p.C)
    if is_strided(p):  # n is 1
        shape = (d, h // p.stride_h, p.stride_h, w // p.stride_w, p.stride_w * p.C)
    return described(x, shape, block)

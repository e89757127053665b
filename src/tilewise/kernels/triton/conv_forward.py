"""Grouped convolution forward, NHWGC x GKYXC -> NHWGK, 2D and 3D, as an implicit matrix product.

Rows are output pixels, columns the output channels of one group, and K runs over filter taps x channels of the group.
The walks differ in how they step along K (see :mod:`tilewise.kernels.rules`); operands keep their type, sums are fp32.
With ``split_k`` above 1 each program sums a share of K into a workspace, and a second launch adds the shares in a fixed
order, so that results do not depend on timing.
"""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from tilewise.kernels.kernel import Kernel
from tilewise.kernels.rules import DEPTHWISE
from tilewise.kernels.triton.conv import (
    launches_of,
    output_sizes_of,
    pixel_at,
    pixels,
    programs_of,
    reach_of,
    store_pixels,
    within,
)
from tilewise.kernels.triton.conv_walks import WALKS
from tilewise.kernels.triton.program import Launch, Program
from tilewise.kernels.triton.tiles import indices_of
from tilewise.ops import GroupedConvProblem
from tilewise.ops.grouped_conv import output_elements

_REDUCE_BLOCK = 1024


@triton.jit
def conv_taps(
    x, w, y, partial,
    rows, C, K, Cg, Kg, Di, Hi, Wi, Do, Ho, Wo, Z, Y, X,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """One step is one filter tap x TILE_K channels, all in one software-pipelined loop."""
    g = tl.program_id(1)
    split = tl.program_id(2)
    row, col = indices_of(tl.program_id(0), rows, Kg, TILE_M, TILE_N, GROUP_M)
    lane = tl.arange(0, TILE_K)
    n, od, oh, ow = pixels(row, Do, Ho, Wo)
    id0 = od * stride_d - pad_d
    ih0 = oh * stride_h - pad_h
    iw0 = ow * stride_w - pad_w
    taps = Z * Y * X
    w_col = w + (g * Kg + col)[None, :] * (taps * Cg)
    x_group = x + g * Cg

    steps_c = tl.cdiv(Cg, TILE_K)
    share = tl.cdiv(taps * steps_c, SPLIT_K)
    begin = split * share
    end = tl.minimum(begin + share, taps * steps_c)
    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for step in range(begin, end):
        tap = step // steps_c
        c = (step % steps_c) * TILE_K + lane
        rd, rh, rw = reach_of(tap, Y, X, dilation_d, dilation_h, dilation_w)
        d, h, v = id0 + rd, ih0 + rh, iw0 + rw
        inside = within(row < rows, d, h, v, Di, Hi, Wi)
        pixel = pixel_at(n, d, h, v, Di, Hi, Wi)
        a = tl.load(x_group + pixel[:, None] * C + c[None, :], mask=inside[:, None] & (c < Cg)[None, :], other=0.0)
        b = tl.load(w_col + tap * Cg + c[:, None], mask=(c < Cg)[:, None] & (col < Kg)[None, :], other=0.0)
        acc = tl.dot(a, b, acc)
    store_pixels(acc, y, partial, row, col, row < rows, rows, K, Kg, g, split, SPLIT_K)


@triton.jit
def conv_flat(
    x, w, y, partial,
    rows, C, K, Cg, Kg, Di, Hi, Wi, Do, Ho, Wo, Z, Y, X,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """One step is TILE_K of the flattened (tap, channel) index, so that few channels still fill a step."""
    g = tl.program_id(1)
    split = tl.program_id(2)
    row, col = indices_of(tl.program_id(0), rows, Kg, TILE_M, TILE_N, GROUP_M)
    lane = tl.arange(0, TILE_K)
    n, od, oh, ow = pixels(row, Do, Ho, Wo)
    id0 = (od * stride_d - pad_d)[:, None]
    ih0 = (oh * stride_h - pad_h)[:, None]
    iw0 = (ow * stride_w - pad_w)[:, None]
    depth = Z * Y * X * Cg
    w_col = w + (g * Kg + col)[None, :] * depth
    x_group = x + g * Cg

    share = tl.cdiv(tl.cdiv(depth, TILE_K), SPLIT_K)
    begin = split * share
    end = tl.minimum(begin + share, tl.cdiv(depth, TILE_K))
    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for step in range(begin, end):
        k = step * TILE_K + lane
        tap = k // Cg
        c = k % Cg
        rd, rh, rw = reach_of(tap, Y, X, dilation_d, dilation_h, dilation_w)
        d, h, v = id0 + rd[None, :], ih0 + rh[None, :], iw0 + rw[None, :]
        inside = within((row < rows)[:, None] & (k < depth)[None, :], d, h, v, Di, Hi, Wi)
        pixel = pixel_at(n[:, None], d, h, v, Di, Hi, Wi)
        a = tl.load(x_group + pixel * C + c[None, :], mask=inside, other=0.0)
        b = tl.load(w_col + k[:, None], mask=(k < depth)[:, None] & (col < Kg)[None, :], other=0.0)
        acc = tl.dot(a, b, acc)
    store_pixels(acc, y, partial, row, col, row < rows, rows, K, Kg, g, split, SPLIT_K)


@triton.jit
def conv_point(
    x, w, y, partial,
    rows, C, K, Cg, Kg, Di, Hi, Wi, Do, Ho, Wo, stride_d, stride_h, stride_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """A 1x1 filter without padding: every tap lies inside, so rows are addressed once and K just advances."""
    g = tl.program_id(1)
    split = tl.program_id(2)
    row, col = indices_of(tl.program_id(0), rows, Kg, TILE_M, TILE_N, GROUP_M)
    lane = tl.arange(0, TILE_K)
    # rows beyond the last read the last one: cheaper than a mask, and never stored
    n, od, oh, ow = pixels(tl.minimum(row, rows - 1), Do, Ho, Wo)
    pixel = pixel_at(n, od * stride_d, oh * stride_h, ow * stride_w, Di, Hi, Wi)
    x_row = x + g * Cg + pixel[:, None] * C
    w_col = w + (g * Kg + tl.minimum(col, Kg - 1))[None, :] * Cg

    share = tl.cdiv(tl.cdiv(Cg, TILE_K), SPLIT_K)
    begin = split * share
    end = tl.minimum(begin + share, tl.cdiv(Cg, TILE_K))
    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for step in range(begin, end):
        c = step * TILE_K + lane
        a = tl.load(x_row + c[None, :], mask=(c < Cg)[None, :], other=0.0)
        b = tl.load(w_col + c[:, None], mask=(c < Cg)[:, None], other=0.0)
        acc = tl.dot(a, b, acc)
    store_pixels(acc, y, partial, row, col, row < rows, rows, K, Kg, g, split, SPLIT_K)


@triton.jit
def conv_depth(
    x, w, y,
    rows, C, K, Kg, Di, Hi, Wi, Do, Ho, Wo, Z, Y, X,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """One input channel a group: each output channel filters its own input channel, without a matrix product."""
    row, col = indices_of(tl.program_id(0), rows, K, TILE_M, TILE_N, GROUP_M)
    n, od, oh, ow = pixels(row, Do, Ho, Wo)
    id0 = od * stride_d - pad_d
    ih0 = oh * stride_h - pad_h
    iw0 = ow * stride_w - pad_w
    taps = Z * Y * X
    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for tap in range(taps):
        rd, rh, rw = reach_of(tap, Y, X, dilation_d, dilation_h, dilation_w)
        d, h, v = id0 + rd, ih0 + rh, iw0 + rw
        inside = within(row < rows, d, h, v, Di, Hi, Wi)
        pixel = pixel_at(n, d, h, v, Di, Hi, Wi)
        mask = inside[:, None] & (col < K)[None, :]
        if Kg == 1:  # one output channel a group too: neighbouring columns read neighbouring channels
            a = tl.load(x + pixel[:, None] * C + col[None, :], mask=mask, other=0.0)
        else:
            a = tl.load(x + pixel[:, None] * C + (col // Kg)[None, :], mask=mask, other=0.0)
        b = tl.load(w + col * taps + tap, mask=col < K, other=0.0)
        acc += a.to(tl.float32) * b.to(tl.float32)[None, :]
    mask = (row < rows)[:, None] & (col < K)[None, :]
    tl.store(y + row[:, None] * K + col[None, :], acc.to(y.dtype.element_ty), mask=mask)


@triton.jit
def conv_lanes(
    x, w, y,
    rows, C, Di, Hi, Wi, Do, Ho, Wo, Z, Y, X,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, GROUP_M: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """One input and one output channel a group: columns are channels, and NUM_STAGES taps are loaded at once."""
    row, col = indices_of(tl.program_id(0), rows, C, TILE_M, TILE_N, GROUP_M)
    n, od, oh, ow = pixels(row, Do, Ho, Wo)
    id0 = od * stride_d - pad_d
    ih0 = oh * stride_h - pad_h
    iw0 = ow * stride_w - pad_w
    taps = Z * Y * X
    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for tap in tl.range(0, taps, loop_unroll_factor=NUM_STAGES):
        rd, rh, rw = reach_of(tap, Y, X, dilation_d, dilation_h, dilation_w)
        d, h, v = id0 + rd, ih0 + rh, iw0 + rw
        mask = within(row < rows, d, h, v, Di, Hi, Wi)[:, None] & (col < C)[None, :]
        a = tl.load(x + pixel_at(n, d, h, v, Di, Hi, Wi)[:, None] * C + col[None, :], mask=mask, other=0.0)
        b = tl.load(w + col * taps + tap, mask=col < C, other=0.0)
        acc += a.to(tl.float32) * b.to(tl.float32)[None, :]
    mask = (row < rows)[:, None] & (col < C)[None, :]
    tl.store(y + row[:, None] * C + col[None, :], acc.to(y.dtype.element_ty), mask=mask)


_FUNCTIONS: dict[str, Any] = {
    "taps": conv_taps, "flat": conv_flat, "point": conv_point, "depth": conv_depth, "lanes": conv_lanes,
}  # fmt: skip


def workspace_elements(kernel: Kernel, problem: GroupedConvProblem) -> int:
    """fp32 elements of workspace that a launch needs (0 without split-K)."""
    return kernel.split_k * output_elements(problem) if kernel.split_k > 1 else 0


def programs(kernel: Kernel, problem: GroupedConvProblem, dtype: str) -> tuple[Program, ...]:
    """The programs that `kernel` runs for `problem`, in order; problems of equal alignment share them."""
    if walk := WALKS.get(kernel.pipeline):
        return walk.programs(kernel, problem, "forward", dtype)
    function = _FUNCTIONS[kernel.pipeline]
    return programs_of(function, dict.fromkeys(("x", "w", "y")), kernel, problem, dtype, problem.K, _REDUCE_BLOCK)


def launches(
    kernel: Kernel, problem: GroupedConvProblem, dtype: str, x: Any, w: Any, y: Any, workspace: Any
) -> tuple[Launch, ...]:
    """The launches that compute ``y = conv(x, w)``.

    Args:
        kernel: a legal kernel that supports `problem`.
        problem: the shape.
        dtype: element type of all three tensors.
        x: (N, Di, Hi, Wi, C), contiguous.
        w: (K, Z, Y, X, C / G), contiguous: group by group.
        y: (N, Do, Ho, Wo, K), contiguous; written.
        workspace: fp32, at least :func:`workspace_elements` long; any tensor where that is 0.
    """
    if walk := WALKS.get(kernel.pipeline):
        return walk.launches(kernel, problem, "forward", dtype, x, w, y, workspace)
    sizes = output_sizes_of(problem)
    depth = kernel.pipeline in DEPTHWISE
    tiles = triton.cdiv(sizes["rows"], kernel.tile_m)
    tiles *= triton.cdiv(sizes["K"] if depth else sizes["Kg"], kernel.tile_n)
    grid = (tiles, 1 if depth else problem.G, kernel.split_k)
    return launches_of(programs(kernel, problem, dtype), grid, (x, w, y, workspace), sizes, output_elements(problem))

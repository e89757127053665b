"""The walk ``strip`` of the filter's gradient: depthwise, a thread keeps neighbouring pixels of a row of the output.

A column of the image is loaded once for all taps of a filter row that meet it, into as many sums as the row has taps.
A program follows rows of pixels from end to end, so that only their beginnings are looked for by division.
"""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from tilewise.kernels.kernel import Kernel
from tilewise.kernels.triton.conv import launches_of, pixel_at, pixels, programs_of, sizes_of, store_taps, within
from tilewise.kernels.triton.conv_strip import constants_of
from tilewise.kernels.triton.program import Launch, Program
from tilewise.kernels.triton.tiles import share_of
from tilewise.ops import GroupedConvProblem
from tilewise.ops.grouped_conv import weight_elements

_REDUCE_BLOCK = 256


@triton.jit
def bwd_weight_strip(
    dy, x, dw, partial,
    lines, C, Di, Hi, Wi, Do, Ho, Wo, Z, Y,
    stride_d, stride_h, pad_d, pad_h, pad_w, dilation_d, dilation_h,
    X: tl.constexpr, stride_w: tl.constexpr, dilation_w: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """One filter row of TILE_N channels; one step is TILE_M / TILE_K rows of the output, strip by strip of TILE_K."""
    split = tl.program_id(2)
    filter_rows = Z * Y
    filter_row = tl.program_id(0) % filter_rows
    col = tl.program_id(0) // filter_rows * TILE_N + tl.arange(0, TILE_N)
    lane = tl.arange(0, TILE_M // TILE_K)
    d0, h0 = filter_row // Y * dilation_d - pad_d, filter_row % Y * dilation_h - pad_h
    begin, end = share_of(split, tl.cdiv(lines, TILE_M // TILE_K), SPLIT_K)
    acc = (tl.zeros((TILE_M // TILE_K, TILE_N), dtype=tl.float32),) * X
    for step in range(begin, end):
        line = step * (TILE_M // TILE_K) + lane
        n, od, oh, _ = pixels(line, Do, Ho, 1)
        d, h = od * stride_d + d0, oh * stride_h + h0
        inside = within(line < lines, d, h, 0, Di, Hi, 1)
        dy_line = dy + (line * Wo)[:, None] * C + col[None, :]
        x_line = x + pixel_at(n, d, h, 0, Di, Hi, Wi)[:, None] * C + col[None, :]
        for w in range(0, Wo, TILE_K):
            a: tl.tuple = ()
            column = tl.where(inside, w, Wo)  # a row that meets none of the image begins behind its last column
            for p in tl.static_range(TILE_K):
                mask = (column + p < Wo)[:, None] & (col < C)[None, :]
                a += (tl.load(dy_line + (w + p) * C, mask=mask, other=0.0).to(tl.float32),)
            v = w * stride_w - pad_w
            column = tl.where(inside, v, Wi)
            for j in tl.static_range((TILE_K - 1) * stride_w + (X - 1) * dilation_w + 1):
                mask = ((column + j >= 0) & (column + j < Wi))[:, None] & (col < C)[None, :]
                b = tl.load(x_line + (v + j) * C, mask=mask, other=0.0).to(tl.float32)
                for fx in tl.static_range(X):
                    for p in tl.static_range(TILE_K):
                        if p * stride_w + fx * dilation_w == j:
                            acc = acc[:fx] + (acc[fx] + a[p] * b,) + acc[fx + 1 :]  # noqa: RUF005 (not in Triton)
    taps = filter_rows * X
    for fx in tl.static_range(X):
        store_taps(tl.sum(acc[fx], 0), dw, partial, filter_row * X + fx, col, taps, C, split, SPLIT_K)


def programs(kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str) -> tuple[Program, ...]:
    """See :class:`tilewise.kernels.triton.conv_walks.Walk`."""
    tensors, constants = dict.fromkeys(("dy", "x", "dw")), constants_of(problem)
    return programs_of(bwd_weight_strip, tensors, kernel, problem, dtype, 1, _REDUCE_BLOCK, constants)


def launches(
    kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, *tensors: Any
) -> tuple[Launch, ...]:
    """See :class:`tilewise.kernels.triton.conv_walks.Walk`."""
    sizes = sizes_of(problem)
    sizes["lines"] = sizes["N"] * sizes["Do"] * sizes["Ho"]
    grid = (problem.Z * problem.Y * triton.cdiv(problem.C, kernel.tile_n), 1, kernel.split_k)
    return launches_of(programs(kernel, problem, variant, dtype), grid, tensors, sizes, weight_elements(problem))

"""Grouped convolution's gradient for the filter: NHWGK (dY) x NHWGC (X) -> GKYXC (dW), 2D and 3D.

Rows are the output channels of one group, columns its (tap, input channel) pairs, and K runs over output pixels: long
where the result is small, so most shapes want ``split_k``. Shares of K lie in a workspace, and a second launch adds
them in a fixed order: results do not depend on timing. The walks differ in their columns:

- ``taps``: a tile of columns lies within one filter tap, so an image row is addressed once a step;
- ``flat``: tiles cover the flattened (tap, channel) index, so that few channels still fill a tile;
- ``point``: a 1x1 filter without padding;
- ``depth``: one input channel a group: ``tile_m`` pixels x ``tile_n`` channels a step, summed over pixels at the end;
- ``box``, ``strip``, ``tma`` and ``persistent``: see the modules in ``_WALKS``.
"""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from tilewise.kernels.kernel import Kernel
from tilewise.kernels.triton import conv_box_weight, conv_strip_weight
from tilewise.kernels.triton.conv import (
    launches_of,
    output_sizes_of,
    pixel_at,
    pixels,
    programs_of,
    reach_of,
    store_filter,
    store_taps,
    within,
)
from tilewise.kernels.triton.conv_walks import WALKS, Walk
from tilewise.kernels.triton.program import Launch, Program
from tilewise.kernels.triton.tiles import share_of, swizzled
from tilewise.ops import GroupedConvProblem
from tilewise.ops.grouped_conv import weight_elements

_REDUCE_BLOCK = 256  # filters are small: more programs, each summing many shares


@triton.jit
def bwd_weight_taps(
    dy, x, dw, partial,
    rows, C, K, Cg, Kg, Di, Hi, Wi, Do, Ho, Wo, Z, Y, X,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """Columns of one filter tap; one step is TILE_K output pixels."""
    g = tl.program_id(1)
    split = tl.program_id(2)
    tiles_c = tl.cdiv(Cg, TILE_N)
    taps = Z * Y * X
    tile_m, tile_n = swizzled(tl.program_id(0), tl.cdiv(Kg, TILE_M), taps * tiles_c, GROUP_M)
    tap = tile_n // tiles_c
    k = tile_m * TILE_M + tl.arange(0, TILE_M)
    c = (tile_n % tiles_c) * TILE_N + tl.arange(0, TILE_N)
    lane = tl.arange(0, TILE_K)
    rd, rh, rw = reach_of(tap, Y, X, dilation_d, dilation_h, dilation_w)
    d0, h0, w0 = rd - pad_d, rh - pad_h, rw - pad_w
    dy_k = dy + (g * Kg + k)[:, None]
    x_c = x + (g * Cg + c)[None, :]

    begin, end = share_of(split, tl.cdiv(rows, TILE_K), SPLIT_K)
    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for step in range(begin, end):
        row = step * TILE_K + lane
        n, od, oh, ow = pixels(row, Do, Ho, Wo)
        d = od * stride_d + d0
        h = oh * stride_h + h0
        v = ow * stride_w + w0
        inside = within(row < rows, d, h, v, Di, Hi, Wi)
        pixel = pixel_at(n, d, h, v, Di, Hi, Wi)
        a = tl.load(dy_k + row[None, :] * K, mask=(k < Kg)[:, None] & (row < rows)[None, :], other=0.0)
        b = tl.load(x_c + pixel[:, None] * C, mask=inside[:, None] & (c < Cg)[None, :], other=0.0)
        acc = tl.dot(a, b, acc)
    store_filter(acc, dw, partial, k, tap * Cg + c, c < Cg, K, taps * Cg, Kg, g, split, SPLIT_K)


@triton.jit
def bwd_weight_flat(
    dy, x, dw, partial,
    rows, C, K, Cg, Kg, Di, Hi, Wi, Do, Ho, Wo, Z, Y, X,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """Columns of the flattened (tap, channel) index; one step is TILE_K output pixels."""
    g = tl.program_id(1)
    split = tl.program_id(2)
    taps = Z * Y * X
    depth = taps * Cg
    tile_m, tile_n = swizzled(tl.program_id(0), tl.cdiv(Kg, TILE_M), tl.cdiv(depth, TILE_N), GROUP_M)
    k = tile_m * TILE_M + tl.arange(0, TILE_M)
    at = tile_n * TILE_N + tl.arange(0, TILE_N)
    lane = tl.arange(0, TILE_K)
    tap = at // Cg
    rd, rh, rw = reach_of(tap, Y, X, dilation_d, dilation_h, dilation_w)
    d0, h0, w0 = (rd - pad_d)[None, :], (rh - pad_h)[None, :], (rw - pad_w)[None, :]
    dy_k = dy + (g * Kg + k)[:, None]
    x_c = x + (g * Cg + at % Cg)[None, :]

    begin, end = share_of(split, tl.cdiv(rows, TILE_K), SPLIT_K)
    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for step in range(begin, end):
        row = step * TILE_K + lane
        n, od, oh, ow = pixels(row, Do, Ho, Wo)
        d = (od * stride_d)[:, None] + d0
        h = (oh * stride_h)[:, None] + h0
        v = (ow * stride_w)[:, None] + w0
        inside = within((row < rows)[:, None] & (at < depth)[None, :], d, h, v, Di, Hi, Wi)
        pixel = pixel_at(n[:, None], d, h, v, Di, Hi, Wi)
        a = tl.load(dy_k + row[None, :] * K, mask=(k < Kg)[:, None] & (row < rows)[None, :], other=0.0)
        b = tl.load(x_c + pixel * C, mask=inside, other=0.0)
        acc = tl.dot(a, b, acc)
    store_filter(acc, dw, partial, k, at, at < depth, K, depth, Kg, g, split, SPLIT_K)


@triton.jit
def bwd_weight_point(
    dy, x, dw, partial,
    rows, C, K, Cg, Kg, Di, Hi, Wi, Do, Ho, Wo, stride_d, stride_h, stride_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """A 1x1 filter without padding: every output pixel has its input pixel."""
    g = tl.program_id(1)
    split = tl.program_id(2)
    tile_m, tile_n = swizzled(tl.program_id(0), tl.cdiv(Kg, TILE_M), tl.cdiv(Cg, TILE_N), GROUP_M)
    k = tile_m * TILE_M + tl.arange(0, TILE_M)
    c = tile_n * TILE_N + tl.arange(0, TILE_N)
    lane = tl.arange(0, TILE_K)
    dy_k = dy + (g * Kg + k)[:, None]
    x_c = x + (g * Cg + c)[None, :]

    begin, end = share_of(split, tl.cdiv(rows, TILE_K), SPLIT_K)
    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for step in range(begin, end):
        row = step * TILE_K + lane
        n, od, oh, ow = pixels(row, Do, Ho, Wo)
        pixel = pixel_at(n, od * stride_d, oh * stride_h, ow * stride_w, Di, Hi, Wi)
        a = tl.load(dy_k + row[None, :] * K, mask=(k < Kg)[:, None] & (row < rows)[None, :], other=0.0)
        b = tl.load(x_c + pixel[:, None] * C, mask=(row < rows)[:, None] & (c < Cg)[None, :], other=0.0)
        acc = tl.dot(a, b, acc)
    store_filter(acc, dw, partial, k, c, c < Cg, K, Cg, Kg, g, split, SPLIT_K)


@triton.jit
def bwd_weight_depth(
    dy, x, dw, partial,
    rows, C, K, Kg, Di, Hi, Wi, Do, Ho, Wo, Z, Y, X,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """One input channel a group: one tap of TILE_N channels, TILE_M output pixels a step."""
    split = tl.program_id(2)
    taps = Z * Y * X
    tap = tl.program_id(0) % taps
    col = tl.program_id(0) // taps * TILE_N + tl.arange(0, TILE_N)
    lane = tl.arange(0, TILE_M)
    rd, rh, rw = reach_of(tap, Y, X, dilation_d, dilation_h, dilation_w)
    d0, h0, w0 = rd - pad_d, rh - pad_h, rw - pad_w

    begin, end = share_of(split, tl.cdiv(rows, TILE_M), SPLIT_K)
    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for step in range(begin, end):
        row = step * TILE_M + lane
        n, od, oh, ow = pixels(row, Do, Ho, Wo)
        d = od * stride_d + d0
        h = oh * stride_h + h0
        v = ow * stride_w + w0
        inside = within(row < rows, d, h, v, Di, Hi, Wi)
        pixel = pixel_at(n, d, h, v, Di, Hi, Wi)
        mask = inside[:, None] & (col < K)[None, :]
        a = tl.load(dy + row[:, None] * K + col[None, :], mask=mask, other=0.0)
        if Kg == 1:  # neighbouring columns read neighbouring channels
            b = tl.load(x + pixel[:, None] * C + col[None, :], mask=mask, other=0.0)
        else:
            b = tl.load(x + pixel[:, None] * C + (col // Kg)[None, :], mask=mask, other=0.0)
        acc += a.to(tl.float32) * b.to(tl.float32)
    store_taps(tl.sum(acc, 0), dw, partial, tap, col, taps, K, split, SPLIT_K)


_FUNCTIONS: dict[str, Any] = {
    "taps": bwd_weight_taps, "flat": bwd_weight_flat, "point": bwd_weight_point, "depth": bwd_weight_depth,
}  # fmt: skip


_WALKS = {
    **WALKS,
    "box": Walk(conv_box_weight.programs, conv_box_weight.launches),
    "strip": Walk(conv_strip_weight.programs, conv_strip_weight.launches),
}


def workspace_elements(kernel: Kernel, problem: GroupedConvProblem) -> int:
    """fp32 elements of workspace that a launch needs (0 without split-K)."""
    return kernel.split_k * weight_elements(problem) if kernel.split_k > 1 else 0


def programs(kernel: Kernel, problem: GroupedConvProblem, dtype: str) -> tuple[Program, ...]:
    """The programs that `kernel` runs for `problem`, in order; problems of equal alignment share them."""
    if walk := _WALKS.get(kernel.pipeline):
        return walk.programs(kernel, problem, "bwd_weight", dtype)
    function, contiguous = _FUNCTIONS[kernel.pipeline], problem.C // problem.G
    return programs_of(function, dict.fromkeys(("dy", "x", "dw")), kernel, problem, dtype, contiguous, _REDUCE_BLOCK)


def launches(
    kernel: Kernel, problem: GroupedConvProblem, dtype: str, dy: Any, x: Any, dw: Any, workspace: Any
) -> tuple[Launch, ...]:
    """The launches that compute the gradient for the filter.

    Args:
        kernel: a legal kernel that supports `problem`.
        problem: the shape.
        dtype: element type of all three tensors.
        dy: (N, Do, Ho, Wo, K), contiguous.
        x: (N, Di, Hi, Wi, C), contiguous.
        dw: (K, Z, Y, X, C / G), contiguous: group by group; written.
        workspace: fp32, at least :func:`workspace_elements` long; any tensor where that is 0.
    """
    if walk := _WALKS.get(kernel.pipeline):
        return walk.launches(kernel, problem, "bwd_weight", dtype, dy, x, dw, workspace)
    return launches_of(
        programs(kernel, problem, dtype), _grid(kernel, problem), (dy, x, dw, workspace), output_sizes_of(problem),
        weight_elements(problem),
    )  # fmt: skip


def _grid(kernel: Kernel, problem: GroupedConvProblem) -> tuple[int, int, int]:
    taps, cg, kg = problem.Z * problem.Y * problem.X, problem.C // problem.G, problem.K // problem.G
    if kernel.pipeline == "depth":
        return (taps * triton.cdiv(problem.K, kernel.tile_n), 1, kernel.split_k)
    flat = kernel.pipeline == "flat"
    tiles_n = triton.cdiv(taps * cg, kernel.tile_n) if flat else taps * triton.cdiv(cg, kernel.tile_n)
    return (triton.cdiv(kg, kernel.tile_m) * tiles_n, problem.G, kernel.split_k)

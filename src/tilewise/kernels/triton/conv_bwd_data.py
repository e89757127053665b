"""Grouped convolution's gradient for the input: NHWGK (dY) x GKYXC (W) -> NHWGC (dX), 2D and 3D.

Rows are input pixels, columns the input channels of one group, and K runs over filter taps x output channels of the
group. With a stride, only taps that agree with a pixel's residue modulo the stride reach it: input pixels fall into
``stride_d * stride_h * stride_w`` classes of equal residues, each a product of its own over just its taps, with rows
that step through the output by one. The walks and split-K are those of the forward kernels.
"""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl

from tilewise.kernels.kernel import Kernel
from tilewise.kernels.rules import DEPTHWISE
from tilewise.kernels.triton.conv import launches_of, pixel_at, pixels, programs_of, store_pixels, within
from tilewise.kernels.triton.conv_walks import WALKS
from tilewise.kernels.triton.program import Launch, Program
from tilewise.kernels.triton.residues import class_sizes_of, residues_of, taps_of
from tilewise.kernels.triton.tiles import indices_of, share_of
from tilewise.ops import GroupedConvProblem
from tilewise.ops.grouped_conv import input_elements

_REDUCE_BLOCK = 1024


@triton.jit
def bwd_data_taps(
    dy, w, dx, partial,
    rows, C, K, Cg, Kg, N, Di, Hi, Wi, Do, Ho, Wo, Dq, Hq, Wq, Z, Y, X,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    every_d, every_h, every_w, common_d, common_h, common_w, inverse_d, inverse_h, inverse_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """One step is one filter tap x TILE_K output channels, all in one software-pipelined loop."""
    g = tl.program_id(1)
    split = tl.program_id(2) % SPLIT_K
    residue = tl.program_id(2) // SPLIT_K
    rd, rh, rw = residues_of(residue, stride_h, stride_w)
    z0, nz, d0, leap_d = taps_of(rd, Z, stride_d, pad_d, dilation_d, every_d, common_d, inverse_d)
    y0, ny, h0, leap_h = taps_of(rh, Y, stride_h, pad_h, dilation_h, every_h, common_h, inverse_h)
    x0, nx, w0, leap_w = taps_of(rw, X, stride_w, pad_w, dilation_w, every_w, common_w, inverse_w)
    line, plane = tl.maximum(nx, 1), tl.maximum(ny * nx, 1)  # a class without taps must not divide by zero

    row, col = indices_of(tl.program_id(0), rows, Cg, TILE_M, TILE_N, GROUP_M)
    lane = tl.arange(0, TILE_K)
    n, dq, hq, wq = pixels(row, Dq, Hq, Wq)
    od0, oh0, ow0 = dq + d0, hq + h0, wq + w0
    taps = Z * Y * X
    w_col = w + g * Kg * taps * Cg + col[None, :]
    dy_group = dy + g * Kg

    steps_k = tl.cdiv(Kg, TILE_K)
    begin, end = share_of(split, nz * ny * nx * steps_k, SPLIT_K)
    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for step in range(begin, end):
        tap = step // steps_k
        k = (step % steps_k) * TILE_K + lane
        z, y, x = tap // plane, tap % plane // line, tap % line  # counted within the class
        od, oh, ow = od0 - z * leap_d, oh0 - y * leap_h, ow0 - x * leap_w
        inside = within(row < rows, od, oh, ow, Do, Ho, Wo)
        pixel = pixel_at(n, od, oh, ow, Do, Ho, Wo)
        a = tl.load(dy_group + pixel[:, None] * K + k[None, :], mask=inside[:, None] & (k < Kg)[None, :], other=0.0)
        at = k * (taps * Cg) + (((z0 + z * every_d) * Y + y0 + y * every_h) * X + x0 + x * every_w) * Cg
        b = tl.load(w_col + at[:, None], mask=(k < Kg)[:, None] & (col < Cg)[None, :], other=0.0)
        acc = tl.dot(a, b, acc)
    d, h, v = dq * stride_d + rd, hq * stride_h + rh, wq * stride_w + rw
    inside = (row < rows) & (d < Di) & (h < Hi) & (v < Wi)
    pixel = pixel_at(n, d, h, v, Di, Hi, Wi)
    store_pixels(acc, dx, partial, pixel, col, inside, N * Di * Hi * Wi, C, Cg, g, split, SPLIT_K)


@triton.jit
def bwd_data_flat(
    dy, w, dx, partial,
    rows, C, K, Cg, Kg, N, Di, Hi, Wi, Do, Ho, Wo, Dq, Hq, Wq, Z, Y, X,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    every_d, every_h, every_w, common_d, common_h, common_w, inverse_d, inverse_h, inverse_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """One step is TILE_K of the flattened (tap, output channel) index, so that few channels still fill a step."""
    g = tl.program_id(1)
    split = tl.program_id(2) % SPLIT_K
    residue = tl.program_id(2) // SPLIT_K
    rd, rh, rw = residues_of(residue, stride_h, stride_w)
    z0, nz, d0, leap_d = taps_of(rd, Z, stride_d, pad_d, dilation_d, every_d, common_d, inverse_d)
    y0, ny, h0, leap_h = taps_of(rh, Y, stride_h, pad_h, dilation_h, every_h, common_h, inverse_h)
    x0, nx, w0, leap_w = taps_of(rw, X, stride_w, pad_w, dilation_w, every_w, common_w, inverse_w)
    line, plane = tl.maximum(nx, 1), tl.maximum(ny * nx, 1)  # a class without taps must not divide by zero

    row, col = indices_of(tl.program_id(0), rows, Cg, TILE_M, TILE_N, GROUP_M)
    lane = tl.arange(0, TILE_K)
    n, dq, hq, wq = pixels(row, Dq, Hq, Wq)
    od0, oh0, ow0 = (dq + d0)[:, None], (hq + h0)[:, None], (wq + w0)[:, None]
    taps = Z * Y * X
    depth = nz * ny * nx * Kg
    w_col = w + g * Kg * taps * Cg + col[None, :]
    dy_group = dy + g * Kg

    begin, end = share_of(split, tl.cdiv(depth, TILE_K), SPLIT_K)
    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for step in range(begin, end):
        at = step * TILE_K + lane
        tap = at // Kg
        k = at % Kg
        z, y, x = tap // plane, tap % plane // line, tap % line  # counted within the class
        od, oh, ow = od0 - (z * leap_d)[None, :], oh0 - (y * leap_h)[None, :], ow0 - (x * leap_w)[None, :]
        inside = within((row < rows)[:, None] & (at < depth)[None, :], od, oh, ow, Do, Ho, Wo)
        pixel = pixel_at(n[:, None], od, oh, ow, Do, Ho, Wo)
        a = tl.load(dy_group + pixel * K + k[None, :], mask=inside, other=0.0)
        w_row = k * (taps * Cg) + (((z0 + z * every_d) * Y + y0 + y * every_h) * X + x0 + x * every_w) * Cg
        b = tl.load(w_col + w_row[:, None], mask=(at < depth)[:, None] & (col < Cg)[None, :], other=0.0)
        acc = tl.dot(a, b, acc)
    d, h, v = dq * stride_d + rd, hq * stride_h + rh, wq * stride_w + rw
    inside = (row < rows) & (d < Di) & (h < Hi) & (v < Wi)
    pixel = pixel_at(n, d, h, v, Di, Hi, Wi)
    store_pixels(acc, dx, partial, pixel, col, inside, N * Di * Hi * Wi, C, Cg, g, split, SPLIT_K)


@triton.jit
def bwd_data_point(
    dy, w, dx, partial,
    rows, C, K, Cg, Kg, N, Di, Hi, Wi, Do, Ho, Wo, stride_d, stride_h, stride_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """A 1x1 filter without padding: rows are output pixels; input pixels between the strides are just zeroed."""
    g = tl.program_id(1)
    split = tl.program_id(2) % SPLIT_K
    residue = tl.program_id(2) // SPLIT_K
    row, col = indices_of(tl.program_id(0), rows, Cg, TILE_M, TILE_N, GROUP_M)
    lane = tl.arange(0, TILE_K)
    # rows beyond the last read the last one: cheaper than a mask, and never stored
    dy_row = dy + g * Kg + tl.minimum(row, rows - 1)[:, None] * K
    w_col = w + g * Kg * Cg + col[None, :]

    begin, end = share_of(split, tl.where(residue == 0, tl.cdiv(Kg, TILE_K), 0), SPLIT_K)
    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for step in range(begin, end):
        k = step * TILE_K + lane
        a = tl.load(dy_row + k[None, :], mask=(k < Kg)[None, :], other=0.0)
        b = tl.load(w_col + k[:, None] * Cg, mask=(k < Kg)[:, None] & (col < Cg)[None, :], other=0.0)
        acc = tl.dot(a, b, acc)
    n, od, oh, ow = pixels(row, Do, Ho, Wo)
    rd, rh, rw = residues_of(residue, stride_h, stride_w)
    d, h, v = od * stride_d + rd, oh * stride_h + rh, ow * stride_w + rw
    inside = (row < rows) & (d < Di) & (h < Hi) & (v < Wi)
    pixel = pixel_at(n, d, h, v, Di, Hi, Wi)
    store_pixels(acc, dx, partial, pixel, col, inside, N * Di * Hi * Wi, C, Cg, g, split, SPLIT_K)


@triton.jit
def bwd_data_depth(
    dy, w, dx,
    rows, C, K, Kg, Di, Hi, Wi, Do, Ho, Wo, Dq, Hq, Wq, Z, Y, X,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    every_d, every_h, every_w, common_d, common_h, common_w, inverse_d, inverse_h, inverse_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """One input channel a group: each gathers from its own output channels, without a matrix product."""
    residue = tl.program_id(2)
    rd, rh, rw = residues_of(residue, stride_h, stride_w)
    z0, nz, d0, leap_d = taps_of(rd, Z, stride_d, pad_d, dilation_d, every_d, common_d, inverse_d)
    y0, ny, h0, leap_h = taps_of(rh, Y, stride_h, pad_h, dilation_h, every_h, common_h, inverse_h)
    x0, nx, w0, leap_w = taps_of(rw, X, stride_w, pad_w, dilation_w, every_w, common_w, inverse_w)
    line, plane = tl.maximum(nx, 1), tl.maximum(ny * nx, 1)  # a class without taps must not divide by zero

    row, col = indices_of(tl.program_id(0), rows, C, TILE_M, TILE_N, GROUP_M)
    n, dq, hq, wq = pixels(row, Dq, Hq, Wq)
    od0, oh0, ow0 = dq + d0, hq + h0, wq + w0
    taps = Z * Y * X
    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for step in range(nz * ny * nx * Kg):
        tap = step // Kg
        j = step % Kg
        z, y, x = tap // plane, tap % plane // line, tap % line  # counted within the class
        od, oh, ow = od0 - z * leap_d, oh0 - y * leap_h, ow0 - x * leap_w
        inside = within(row < rows, od, oh, ow, Do, Ho, Wo)
        pixel = pixel_at(n, od, oh, ow, Do, Ho, Wo)
        mask = inside[:, None] & (col < C)[None, :]
        if Kg == 1:  # neighbouring columns read neighbouring channels
            a = tl.load(dy + pixel[:, None] * K + col[None, :], mask=mask, other=0.0)
        else:
            a = tl.load(dy + pixel[:, None] * K + (col * Kg + j)[None, :], mask=mask, other=0.0)
        at = ((z0 + z * every_d) * Y + y0 + y * every_h) * X + x0 + x * every_w
        b = tl.load(w + (col * Kg + j) * taps + at, mask=col < C, other=0.0)
        acc += a.to(tl.float32) * b.to(tl.float32)[None, :]
    d, h, v = dq * stride_d + rd, hq * stride_h + rh, wq * stride_w + rw
    inside = (row < rows) & (d < Di) & (h < Hi) & (v < Wi)
    pixel = pixel_at(n, d, h, v, Di, Hi, Wi)
    mask = inside[:, None] & (col < C)[None, :]
    tl.store(dx + pixel[:, None] * C + col[None, :], acc.to(dx.dtype.element_ty), mask=mask)


@triton.jit
def bwd_data_lanes(
    dy, w, dx,
    rows, C, Di, Hi, Wi, Do, Ho, Wo, Dq, Hq, Wq, Z, Y, X,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    every_d, every_h, every_w, common_d, common_h, common_w, inverse_d, inverse_h, inverse_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, GROUP_M: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """One input and one output channel a group: columns are channels, and NUM_STAGES taps are loaded at once."""
    rd, rh, rw = residues_of(tl.program_id(2), stride_h, stride_w)
    z0, nz, d0, leap_d = taps_of(rd, Z, stride_d, pad_d, dilation_d, every_d, common_d, inverse_d)
    y0, ny, h0, leap_h = taps_of(rh, Y, stride_h, pad_h, dilation_h, every_h, common_h, inverse_h)
    x0, nx, w0, leap_w = taps_of(rw, X, stride_w, pad_w, dilation_w, every_w, common_w, inverse_w)
    line, plane = tl.maximum(nx, 1), tl.maximum(ny * nx, 1)  # a class without taps must not divide by zero

    row, col = indices_of(tl.program_id(0), rows, C, TILE_M, TILE_N, GROUP_M)
    n, dq, hq, wq = pixels(row, Dq, Hq, Wq)
    od0, oh0, ow0 = dq + d0, hq + h0, wq + w0
    taps = Z * Y * X
    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for tap in tl.range(0, nz * ny * nx, loop_unroll_factor=NUM_STAGES):
        z, y, x = tap // plane, tap % plane // line, tap % line  # counted within the class
        od, oh, ow = od0 - z * leap_d, oh0 - y * leap_h, ow0 - x * leap_w
        mask = within(row < rows, od, oh, ow, Do, Ho, Wo)[:, None] & (col < C)[None, :]
        a = tl.load(dy + pixel_at(n, od, oh, ow, Do, Ho, Wo)[:, None] * C + col[None, :], mask=mask, other=0.0)
        at = ((z0 + z * every_d) * Y + y0 + y * every_h) * X + x0 + x * every_w
        b = tl.load(w + col * taps + at, mask=col < C, other=0.0)
        acc += a.to(tl.float32) * b.to(tl.float32)[None, :]
    d, h, v = dq * stride_d + rd, hq * stride_h + rh, wq * stride_w + rw
    mask = within(row < rows, d, h, v, Di, Hi, Wi)[:, None] & (col < C)[None, :]
    tl.store(dx + pixel_at(n, d, h, v, Di, Hi, Wi)[:, None] * C + col[None, :], acc.to(dx.dtype.element_ty), mask=mask)


_FUNCTIONS: dict[str, Any] = {
    "taps": bwd_data_taps, "flat": bwd_data_flat, "point": bwd_data_point, "depth": bwd_data_depth,
    "lanes": bwd_data_lanes,
}  # fmt: skip


def workspace_elements(kernel: Kernel, problem: GroupedConvProblem) -> int:
    """fp32 elements of workspace that a launch needs (0 without split-K)."""
    return kernel.split_k * input_elements(problem) if kernel.split_k > 1 else 0


def programs(kernel: Kernel, problem: GroupedConvProblem, dtype: str) -> tuple[Program, ...]:
    """The programs that `kernel` runs for `problem`, in order; problems of equal alignment share them."""
    if walk := WALKS.get(kernel.pipeline):
        return walk.programs(kernel, problem, "bwd_data", dtype)
    function = _FUNCTIONS[kernel.pipeline]
    return programs_of(function, dict.fromkeys(("dy", "w", "dx")), kernel, problem, dtype, problem.C, _REDUCE_BLOCK)


def launches(
    kernel: Kernel, problem: GroupedConvProblem, dtype: str, dy: Any, w: Any, dx: Any, workspace: Any
) -> tuple[Launch, ...]:
    """The launches that compute the gradient for the input.

    Args:
        kernel: a legal kernel that supports `problem`.
        problem: the shape.
        dtype: element type of all three tensors.
        dy: (N, Do, Ho, Wo, K), contiguous.
        w: (K, Z, Y, X, C / G), contiguous: group by group.
        dx: (N, Di, Hi, Wi, C), contiguous; written.
        workspace: fp32, at least :func:`workspace_elements` long; any tensor where that is 0.
    """
    if walk := WALKS.get(kernel.pipeline):
        return walk.launches(kernel, problem, "bwd_data", dtype, dy, w, dx, workspace)
    sizes = class_sizes_of(problem)
    depth = kernel.pipeline in DEPTHWISE
    tiles = triton.cdiv(sizes["rows"], kernel.tile_m)
    tiles *= triton.cdiv(sizes["C"] if depth else sizes["Cg"], kernel.tile_n)
    classes = problem.stride_d * problem.stride_h * problem.stride_w
    grid = (tiles, 1 if depth else problem.G, classes * kernel.split_k)
    return launches_of(programs(kernel, problem, dtype), grid, (dy, w, dx, workspace), sizes, input_elements(problem))

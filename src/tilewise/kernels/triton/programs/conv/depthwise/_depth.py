"""The programs of the pipeline ``depth``: one input channel per group, without a matrix product."""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

import triton
import triton.language as tl

from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton.programs._epilogue import ended_pixels
from tilewise.kernels.triton.programs._tiles import indices_of, share_of
from tilewise.kernels.triton.programs.conv._launches import Grid, bwd_data, bwd_weight, forward
from tilewise.kernels.triton.programs.conv._residues import residues_of, taps_of
from tilewise.kernels.triton.programs.conv._shared import pixel_at, pixels, reach_of, store_taps, within
from tilewise.ops import GroupedConvProblem


@triton.jit
def conv_depth(
    x, w, y, bias, residual,
    rows, C, K, Kg, Di, Hi, Wi, Do, Ho, Wo, Z, Y, X,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, GROUP_M: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Compute forward: each output channel filters the one input channel of its group."""
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
        if Kg == 1:  # one output channel per group too: neighbouring columns read neighbouring channels
            a = tl.load(x + pixel[:, None] * C + col[None, :], mask=mask, other=0.0)
        else:
            a = tl.load(x + pixel[:, None] * C + (col // Kg)[None, :], mask=mask, other=0.0)
        b = tl.load(w + col * taps + tap, mask=col < K, other=0.0)
        acc += a.to(tl.float32) * b.to(tl.float32)[None, :]
    acc = ended_pixels(acc, row, col, row < rows, K, K, 0, bias, residual, ACTIVATION)
    mask = (row < rows)[:, None] & (col < K)[None, :]
    tl.store(y + row[:, None] * K + col[None, :], acc.to(y.dtype.element_ty), mask=mask)


@triton.jit
def bwd_data_depth(
    dy, w, dx,
    rows, C, K, Kg, Di, Hi, Wi, Do, Ho, Wo, Dq, Hq, Wq, Z, Y, X,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    every_d, every_h, every_w, common_d, common_h, common_w, inverse_d, inverse_h, inverse_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Compute bwd_data: each input channel gathers from the output channels of its group."""
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
def bwd_weight_depth(
    dy, x, dw, partial,
    rows, C, K, Kg, Di, Hi, Wi, Do, Ho, Wo, Z, Y, X,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """Compute bwd_weight: one tap of TILE_N channels, with TILE_M output pixels per step."""
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


def _weight_grid(kernel: Kernel, problem: GroupedConvProblem) -> Grid:
    """Return the grid of bwd_weight: each tap x tiles of channels."""
    taps = problem.Z * problem.Y * problem.X
    return (taps * triton.cdiv(problem.K, kernel.tile_n), 1, kernel.split_k)


IMPLEMENTATIONS = {
    ("grouped_conv", "forward"): forward(conv_depth, direct=True),
    ("grouped_conv", "bwd_data"): bwd_data(bwd_data_depth, direct=True),
    ("grouped_conv", "bwd_weight"): bwd_weight(bwd_weight_depth, _weight_grid),
}

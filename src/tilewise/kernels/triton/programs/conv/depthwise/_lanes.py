"""The programs of the pipeline ``lanes``: one input and one output channel per group, several taps loaded at once."""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

import triton
import triton.language as tl

from tilewise.kernels.triton.programs._epilogue import ended_pixels
from tilewise.kernels.triton.programs._tiles import indices_of
from tilewise.kernels.triton.programs.conv._launches import bwd_data, forward
from tilewise.kernels.triton.programs.conv._residues import residues_of, taps_of
from tilewise.kernels.triton.programs.conv._shared import pixel_at, pixels, reach_of, within


@triton.jit
def conv_lanes(
    x, w, y, bias, residual,
    rows, C, Di, Hi, Wi, Do, Ho, Wo, Z, Y, X,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, GROUP_M: tl.constexpr, NUM_STAGES: tl.constexpr,
    ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Compute forward: columns are channels, and NUM_STAGES taps are loaded at once."""
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
    acc = ended_pixels(acc, row, col, row < rows, C, C, 0, bias, residual, ACTIVATION)
    mask = (row < rows)[:, None] & (col < C)[None, :]
    tl.store(y + row[:, None] * C + col[None, :], acc.to(y.dtype.element_ty), mask=mask)


@triton.jit
def bwd_data_lanes(
    dy, w, dx,
    rows, C, Di, Hi, Wi, Do, Ho, Wo, Dq, Hq, Wq, Z, Y, X,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    every_d, every_h, every_w, common_d, common_h, common_w, inverse_d, inverse_h, inverse_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, GROUP_M: tl.constexpr, NUM_STAGES: tl.constexpr,
):  # fmt: skip
    """Compute bwd_data: columns are channels, and NUM_STAGES taps are loaded at once."""
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


IMPLEMENTATIONS = {
    ("grouped_conv", "forward"): forward(conv_lanes, direct=True),
    ("grouped_conv", "bwd_data"): bwd_data(bwd_data_lanes, direct=True),
}

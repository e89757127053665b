"""The programs of the pipeline ``taps``: a step (bwd_weight: a tile of columns) lies within one filter tap."""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

import triton
import triton.language as tl

from tilewise.kernels.triton.programs._epilogue import ended_pixels
from tilewise.kernels.triton.programs._tiles import indices_of, share_of, swizzled
from tilewise.kernels.triton.programs.conv._launches import bwd_data, bwd_weight, forward
from tilewise.kernels.triton.programs.conv._residues import residues_of, taps_of
from tilewise.kernels.triton.programs.conv._shared import pixel_at, pixels, reach_of, store_filter, store_pixels, within


@triton.jit
def conv_taps(
    x, w, y, partial, bias, residual,
    rows, C, K, Cg, Kg, Di, Hi, Wi, Do, Ho, Wo, Z, Y, X,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
    ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Compute forward; one step is one filter tap x TILE_K channels, all in one software-pipelined loop."""
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
    acc = ended_pixels(acc, row, col, row < rows, K, Kg, g, bias, residual, ACTIVATION)
    store_pixels(acc, y, partial, row, col, row < rows, rows, K, Kg, g, split, SPLIT_K)


@triton.jit
def bwd_data_taps(
    dy, w, dx, partial,
    rows, C, K, Cg, Kg, N, Di, Hi, Wi, Do, Ho, Wo, Dq, Hq, Wq, Z, Y, X,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    every_d, every_h, every_w, common_d, common_h, common_w, inverse_d, inverse_h, inverse_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """Compute bwd_data; one step is one filter tap x TILE_K output channels, in one software-pipelined loop."""
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
def bwd_weight_taps(
    dy, x, dw, partial,
    rows, C, K, Cg, Kg, Di, Hi, Wi, Do, Ho, Wo, Z, Y, X,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """Compute bwd_weight for columns of one filter tap; one step is TILE_K output pixels."""
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


IMPLEMENTATIONS = {
    ("grouped_conv", "forward"): forward(conv_taps),
    ("grouped_conv", "bwd_data"): bwd_data(bwd_data_taps),
    ("grouped_conv", "bwd_weight"): bwd_weight(bwd_weight_taps),
}

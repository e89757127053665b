"""The programs of the pipeline ``point``: a 1x1 filter without padding."""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

import triton
import triton.language as tl

from tilewise.kernels.triton.programs._epilogue import ended_pixels
from tilewise.kernels.triton.programs._tiles import indices_of, share_of, swizzled
from tilewise.kernels.triton.programs.conv._launches import bwd_data, bwd_weight, forward
from tilewise.kernels.triton.programs.conv._residues import residues_of
from tilewise.kernels.triton.programs.conv._shared import pixel_at, pixels, store_filter, store_pixels


@triton.jit
def conv_point(
    x, w, y, partial, bias, residual,
    rows, C, K, Cg, Kg, Di, Hi, Wi, Do, Ho, Wo, stride_d, stride_h, stride_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
    ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Compute forward: the tap always lies inside, so rows are addressed once and K just advances."""
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
    acc = ended_pixels(acc, row, col, row < rows, K, Kg, g, bias, residual, ACTIVATION)
    store_pixels(acc, y, partial, row, col, row < rows, rows, K, Kg, g, split, SPLIT_K)


@triton.jit
def bwd_data_point(
    dy, w, dx, partial,
    rows, C, K, Cg, Kg, N, Di, Hi, Wi, Do, Ho, Wo, stride_d, stride_h, stride_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """Compute bwd_data: rows are output pixels, and input pixels between the strides are zeroed."""
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
def bwd_weight_point(
    dy, x, dw, partial,
    rows, C, K, Cg, Kg, Di, Hi, Wi, Do, Ho, Wo, stride_d, stride_h, stride_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """Compute bwd_weight: every output pixel has its input pixel."""
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


IMPLEMENTATIONS = {
    ("grouped_conv", "forward"): forward(conv_point),
    ("grouped_conv", "bwd_data"): bwd_data(bwd_data_point),
    ("grouped_conv", "bwd_weight"): bwd_weight(bwd_weight_point),
}

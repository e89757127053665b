"""The programs of the pipeline ``box`` in bwd_weight: a step multiplies a box of output pixels by the input under it.

The box of the input comes through a tensor descriptor, that of the output's gradient through pointers: Triton 3.6 hands
a box to the matrix units straight from shared memory only as the second operand. Its pixels lie at the same places from
every corner, and the corner moves without divisions. Where a box overhangs the output, zeros meet the pixels of the
image there: an input that is not finite may reach taps that do not meet it.
"""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from tilewise.kernels.triton._boxes import box_of, grid_of, taps_of_tile
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton.programs._program import Launch, Program
from tilewise.kernels.triton.programs._tiles import share_of, swizzled
from tilewise.kernels.triton.programs.conv._box_loads import (
    box_pixels,
    boxes_over,
    described_input,
    input_block,
    is_strided,
    load_input,
    named,
    next_start,
    sides,
    start_of,
)
from tilewise.kernels.triton.programs.conv._shared import (
    FILTER_BLOCK,
    Function,
    launches_of,
    pixel_at,
    programs_of,
    sizes_of,
    store_filter,
)
from tilewise.ops import GroupedConvProblem, weight_elements

if TYPE_CHECKING:
    from torch import Tensor


@triton.jit
def bwd_weight_box(
    dy, x, dw, partial,
    C, K, Cg, Kg, N, Do, Ho, Wo, Z, Y, X,
    stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
    BOX_D: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr, STRIDED: tl.constexpr, TAPS: tl.constexpr,
):  # fmt: skip
    """Compute bwd_weight; a step is a box of output pixels, columns are TAPS taps of TILE_N / TAPS channels each."""
    g = tl.program_id(1)
    split = tl.program_id(2)
    taps = Z * Y * X
    tiles_c = tl.cdiv(Cg, TILE_N // TAPS)
    tile_m, tile_n = swizzled(tl.program_id(0), tl.cdiv(Kg, TILE_M), tl.cdiv(taps, TAPS) * tiles_c, GROUP_M)
    tap0 = tile_n // tiles_c * TAPS
    c0 = tile_n % tiles_c * (TILE_N // TAPS)
    k = tile_m * TILE_M + tl.arange(0, TILE_M)
    d, h, v = box_pixels(0, 0, 0, BOX_D, BOX_H, BOX_W)
    # the first operand comes through pointers: as a box it would go through registers
    dy_box = dy + pixel_at(0, d, h, v, Do, Ho, Wo)[:, None] * K + (g * Kg + k)[None, :]
    begin, end = share_of(split, boxes_over(N, Do, Ho, Wo, BOX_D, BOX_H, BOX_W), SPLIT_K)
    acc = (tl.zeros((TILE_M, TILE_N // TAPS), dtype=tl.float32),) * TAPS
    n, d0, h0, w0 = start_of(begin, Do, Ho, Wo, BOX_D, BOX_H, BOX_W)
    for _ in range(begin, end):
        inside = (d < Do - d0) & (h < Ho - h0) & (v < Wo - w0)
        start = dy_box + pixel_at(n, d0, h0, w0, Do, Ho, Wo) * K
        a = tl.load(start, mask=inside[:, None] & (k < Kg)[None, :], other=0.0)
        for t in tl.static_range(TAPS):
            b = load_input(
                x, n, d0, h0, w0, tap0 + t, g * Cg + c0, C, Y, X, stride_h, stride_w, pad_d, pad_h, pad_w,
                dilation_d, dilation_h, dilation_w, STRIDED,
            )  # fmt: skip
            product = tl.dot(a.T, b.reshape(TILE_K, TILE_N // TAPS), acc[t])
            acc = acc[:t] + (product,) + acc[t + 1 :]  # noqa: RUF005 (not in Triton)
        n, d0, h0, w0 = next_start(n, d0, h0, w0, Do, Ho, Wo, BOX_D, BOX_H, BOX_W)
    c = c0 + tl.arange(0, TILE_N // TAPS)
    for t in tl.static_range(TAPS):
        at = (tap0 + t) * Cg + c
        inside = (c < Cg) & (at < taps * Cg)
        store_filter(acc[t], dw, partial, k, at, inside, K, taps * Cg, Kg, g, split, SPLIT_K)


def weight_programs(kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str) -> tuple[Program, ...]:
    """Return the programs; see :class:`tilewise.kernels.triton.Implementation`."""
    box, strided, taps = box_of(grid_of(problem, variant), kernel.tile_k), is_strided(problem), taps_of_tile(kernel)
    tensors = {"dy": None, "x": input_block(box, kernel.tile_n // taps, strided), "dw": None}
    constants = sides(box) | {"STRIDED": strided, "TAPS": taps}
    function = Function(bwd_weight_box, tensors, problem.C // problem.G, FILTER_BLOCK, constants)
    return programs_of(function, kernel, problem, dtype)


def weight_launches(
    kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, *tensors: Tensor
) -> tuple[Launch, ...]:
    """Return the launches; see :class:`tilewise.kernels.triton.Implementation`."""
    dy, x, dw, workspace = tensors
    p, pixels, taps = problem, grid_of(problem, variant), taps_of_tile(kernel)
    block = input_block(box_of(pixels, kernel.tile_k), kernel.tile_n // taps, is_strided(p))
    sizes = sizes_of(p) | named(pixels, "N", "Do", "Ho", "Wo")
    tiles = triton.cdiv(sizes["Kg"], kernel.tile_m) * triton.cdiv(sizes["Cg"], kernel.tile_n // taps)
    tiles *= triton.cdiv(p.Z * p.Y * p.X, taps)
    grid, passed = (tiles, p.G, kernel.split_k), (dy, described_input(x, p, block), dw, workspace)
    return launches_of(weight_programs(kernel, p, variant, dtype), grid, passed, sizes, weight_elements(p))

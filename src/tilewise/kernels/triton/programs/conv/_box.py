"""The programs of the pipeline ``box``: a step loads a box of pixels through a tensor descriptor.

The descriptor zeroes pixels outside the image, so there are neither addresses nor masks. Products are computed
transposed, channels x pixels: Triton 3.6 hands a box to the matrix units straight from shared memory only as the second
operand.
"""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from tilewise.kernels._epilogue import EMPTY_KIND, NO_EPILOGUE, Epilogue, EpilogueKind
from tilewise.kernels.triton._boxes import BOX_PIXELS, Box, Grid, box_of, grid_of, joined, padded_pixels
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._pipeline import Implementation
from tilewise.kernels.triton.programs._epilogue import ended_pixels
from tilewise.kernels.triton.programs._program import Launch, Program, described
from tilewise.kernels.triton.programs._tiles import share_of, swizzled
from tilewise.kernels.triton.programs.conv._box_loads import (
    box_pixels,
    boxes_over,
    described_input,
    input_block,
    is_strided,
    load_input,
    named,
    sides,
    start_of,
)
from tilewise.kernels.triton.programs.conv._box_weight import weight_launches, weight_programs
from tilewise.kernels.triton.programs.conv._residues import class_sizes_of, residues_of, taps_of
from tilewise.kernels.triton.programs.conv._shared import (
    IMAGE_BLOCK,
    Function,
    channel_divisors,
    launches_of,
    output_sizes_of,
    pixel_at,
    programs_of,
    store_pixels,
    within,
)
from tilewise.ops import GroupedConvProblem, input_elements, output_elements

if TYPE_CHECKING:
    from torch import Tensor


@triton.jit
def _corner(pid, N, D, H, W, cols, BOX_D: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr,
            TILE_N: tl.constexpr, GROUP_M: tl.constexpr):  # fmt: skip
    """Return the first pixel (n, d, h, w) of a program's box, and the first column of its tile."""
    boxes = boxes_over(N, D, H, W, BOX_D, BOX_H, BOX_W)
    box, tile_n = swizzled(pid, boxes, tl.cdiv(cols, TILE_N), GROUP_M)
    n, d, h, w = start_of(box, D, H, W, BOX_D, BOX_H, BOX_W)
    return n, d, h, w, tile_n * TILE_N


@triton.jit
def forward_box(
    x, w, y, partial, bias, residual,
    rows, C, K, Cg, Kg, N, Do, Ho, Wo, Z, Y, X,
    stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
    BOX_D: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr, STRIDED: tl.constexpr,
    ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Compute forward; one step is one filter tap x TILE_K channels."""
    g = tl.program_id(1)
    split = tl.program_id(2)
    n, d0, h0, w0, col0 = _corner(tl.program_id(0), N, Do, Ho, Wo, Kg, BOX_D, BOX_H, BOX_W, TILE_N, GROUP_M)
    steps_c = tl.cdiv(Cg, TILE_K)
    begin, end = share_of(split, Z * Y * X * steps_c, SPLIT_K)
    acc = tl.zeros((TILE_N, BOX_D * BOX_H * BOX_W), dtype=tl.float32)
    for step in range(begin, end):
        tap = step // steps_c
        c = step % steps_c * TILE_K
        a = load_input(
            x, n, d0, h0, w0, tap, g * Cg + c, C, Y, X, stride_h, stride_w, pad_d, pad_h, pad_w,
            dilation_d, dilation_h, dilation_w, STRIDED,
        )  # fmt: skip
        b = w.load([g * Kg + col0, tap * Cg + c])  # elements of the next tap meet the zeros beyond the channels
        acc = tl.dot(b, a.reshape(BOX_D * BOX_H * BOX_W, TILE_K).T, acc)
    d, h, v = box_pixels(d0, h0, w0, BOX_D, BOX_H, BOX_W)
    inside = within(d < Do, d, h, v, Do, Ho, Wo)
    col = col0 + tl.arange(0, TILE_N)
    pixel = pixel_at(n, d, h, v, Do, Ho, Wo)
    acc = ended_pixels(acc.T, pixel, col, inside, K, Kg, g, bias, residual, ACTIVATION)
    store_pixels(acc, y, partial, pixel, col, inside, rows, K, Kg, g, split, SPLIT_K)


@triton.jit
def bwd_data_box(
    dy, w, dx, partial,
    pixels, C, K, Cg, Kg, N, Di, Hi, Wi, Dq, Hq, Wq, Z, Y, X,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    every_d, every_h, every_w, common_d, common_h, common_w, inverse_d, inverse_h, inverse_w,
    TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
    BOX_D: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr,
):  # fmt: skip
    """Compute bwd_data; one step is one filter tap x TILE_K output channels, over the taps of a residue class."""
    g = tl.program_id(1)
    split = tl.program_id(2) % SPLIT_K
    rd, rh, rw = residues_of(tl.program_id(2) // SPLIT_K, stride_h, stride_w)
    z0, nz, od0, leap_d = taps_of(rd, Z, stride_d, pad_d, dilation_d, every_d, common_d, inverse_d)
    y0, ny, oh0, leap_h = taps_of(rh, Y, stride_h, pad_h, dilation_h, every_h, common_h, inverse_h)
    x0, nx, ow0, leap_w = taps_of(rw, X, stride_w, pad_w, dilation_w, every_w, common_w, inverse_w)
    line, plane = tl.maximum(nx, 1), tl.maximum(ny * nx, 1)  # a class without taps must not divide by zero

    n, d0, h0, w0, col0 = _corner(tl.program_id(0), N, Dq, Hq, Wq, Cg, BOX_D, BOX_H, BOX_W, TILE_N, GROUP_M)
    steps_k = tl.cdiv(Kg, TILE_K)
    begin, end = share_of(split, nz * ny * nx * steps_k, SPLIT_K)
    acc = tl.zeros((TILE_N, BOX_D * BOX_H * BOX_W), dtype=tl.float32)
    for step in range(begin, end):
        tap = step // steps_k
        k = g * Kg + step % steps_k * TILE_K
        z, y, x = tap // plane, tap % plane // line, tap % line  # counted within the class
        a = dy.load([n, d0 + od0 - z * leap_d, h0 + oh0 - y * leap_h, w0 + ow0 - x * leap_w, k])
        b = w.load([k, (((z0 + z * every_d) * Y + y0 + y * every_h) * X + x0 + x * every_w) * Cg + col0])
        acc = tl.dot(b.T, a.reshape(BOX_D * BOX_H * BOX_W, TILE_K).T, acc)
    d, h, v = box_pixels(d0, h0, w0, BOX_D, BOX_H, BOX_W)
    inside = within(d < Dq, d, h, v, Dq, Hq, Wq)
    d, h, v = d * stride_d + rd, h * stride_h + rh, v * stride_w + rw
    inside = within(inside, d, h, v, Di, Hi, Wi)
    col = col0 + tl.arange(0, TILE_N)
    store_pixels(acc.T, dx, partial, pixel_at(n, d, h, v, Di, Hi, Wi), col, inside, pixels, C, Cg, g, split, SPLIT_K)


def _alignment(problem: GroupedConvProblem, variant: str, dtype: str) -> Hashable:
    grid = grid_of(problem, variant)
    return channel_divisors(problem), tuple(box_of(grid, n) for n in BOX_PIXELS), is_strided(problem)


def _forward_programs(
    kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, kind: EpilogueKind = EMPTY_KIND
) -> tuple[Program, ...]:
    box, strided = box_of(grid_of(problem, variant), kernel.tile_m), is_strided(problem)
    tensors = {"x": input_block(box, kernel.tile_k, strided), "w": (kernel.tile_n, kernel.tile_k), "y": None}
    constants = sides(box) | {"STRIDED": strided}
    function = Function(forward_box, tensors, problem.K, IMAGE_BLOCK, constants)
    return programs_of(function, kernel, problem, dtype, kind)


def _forward_launches(
    kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, *tensors: Tensor,
    epilogue: Epilogue = NO_EPILOGUE,
) -> tuple[Launch, ...]:  # fmt: skip
    x, w, *rest = tensors
    p, grid = problem, grid_of(problem, variant)
    box = box_of(grid, kernel.tile_m)
    sizes = output_sizes_of(p) | named(grid, "N", "Do", "Ho", "Wo")
    descriptors = (
        described_input(x, p, input_block(box, kernel.tile_k, is_strided(p))),
        described(w, (p.K, p.Z * p.Y * p.X * sizes["Cg"]), (kernel.tile_n, kernel.tile_k)),
    )
    tiles = (_tiles(grid, box, sizes["Kg"], kernel), p.G, kernel.split_k)
    programs = _forward_programs(kernel, p, variant, dtype, epilogue.kind)
    return launches_of(programs, tiles, (*descriptors, *rest), sizes, output_elements(p), epilogue)


def _bwd_data_programs(kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str) -> tuple[Program, ...]:
    box = box_of(grid_of(problem, variant), kernel.tile_m)
    tensors = {"dy": (1, *box, kernel.tile_k), "w": (kernel.tile_k, kernel.tile_n), "dx": None}
    return programs_of(Function(bwd_data_box, tensors, problem.C, IMAGE_BLOCK, sides(box)), kernel, problem, dtype)


def _bwd_data_launches(
    kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, *tensors: Tensor
) -> tuple[Launch, ...]:
    dy, w, *rest = tensors
    p, grid = problem, grid_of(problem, variant)
    box, image = box_of(grid, kernel.tile_m), joined(p, p.Di, p.Hi, p.Wi)
    sizes = class_sizes_of(p) | named(grid, "N", "Dq", "Hq", "Wq") | named(image, "N", "Di", "Hi", "Wi")
    sizes["pixels"] = p.N * p.Di * p.Hi * p.Wi
    descriptors = (
        described(dy, (*map(int, joined(p, *p.output_sizes)), p.K), (1, *box, kernel.tile_k)),
        described(w, (p.K, p.Z * p.Y * p.X * sizes["Cg"]), (kernel.tile_k, kernel.tile_n)),
    )
    classes = p.stride_d * p.stride_h * p.stride_w
    tiles = (_tiles(grid, box, sizes["Cg"], kernel), p.G, classes * kernel.split_k)
    programs = _bwd_data_programs(kernel, p, variant, dtype)
    return launches_of(programs, tiles, (*descriptors, *rest), sizes, input_elements(p))


def _tiles(grid: Grid, box: Box, cols: int, kernel: Kernel) -> int:
    tiles: int = triton.cdiv(cols, kernel.tile_n) * (int(padded_pixels(grid, box)) // kernel.tile_m)
    return tiles


IMPLEMENTATIONS = {
    ("grouped_conv", "forward"): Implementation(_forward_programs, _forward_launches, _alignment),
    ("grouped_conv", "bwd_data"): Implementation(_bwd_data_programs, _bwd_data_launches, _alignment),
    ("grouped_conv", "bwd_weight"): Implementation(weight_programs, weight_launches, _alignment),
}

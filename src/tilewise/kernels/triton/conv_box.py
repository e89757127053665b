"""The walk ``box`` of forward and of the input's gradient: a step loads a box of pixels through a tensor descriptor.

The descriptor zeroes what lies outside the image, so there are neither addresses nor masks. Products are computed
transposed, channels x pixels: Triton 3.6 hands a box to the matrix units straight from shared memory only as the second
operand. A strided filter reads every so-many-th pixel, which makes each residue an axis of its own.
"""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

from tilewise.kernels.boxes import BOX_PIXELS, Box, Grid, box_of, grid_of, joined, padded_pixels
from tilewise.kernels.kernel import Kernel
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
from tilewise.kernels.triton.program import Launch, Program, described
from tilewise.kernels.triton.residues import class_sizes_of, residues_of, taps_of
from tilewise.kernels.triton.tiles import share_of, swizzled
from tilewise.ops import GroupedConvProblem
from tilewise.ops.grouped_conv import input_elements, output_elements

_REDUCE_BLOCK = 1024


@triton.jit
def boxes_over(N, D, H, W, BOX_D: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr):
    """How many boxes cover the images."""
    return N * tl.cdiv(D, BOX_D) * tl.cdiv(H, BOX_H) * tl.cdiv(W, BOX_W)


@triton.jit
def start_of(box, D, H, W, BOX_D: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr):
    """Where a box begins: (n, d, h, w)."""
    n, d, h, w = pixels(box, tl.cdiv(D, BOX_D), tl.cdiv(H, BOX_H), tl.cdiv(W, BOX_W))
    return n, d * BOX_D, h * BOX_H, w * BOX_W


@triton.jit
def _corner(pid, N, D, H, W, cols, BOX_D: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr,
            TILE_N: tl.constexpr, GROUP_M: tl.constexpr):  # fmt: skip
    """Where a program's box begins (n, d, h, w), and its tile of the columns."""
    boxes = boxes_over(N, D, H, W, BOX_D, BOX_H, BOX_W)
    box, tile_n = swizzled(pid, boxes, tl.cdiv(cols, TILE_N), GROUP_M)
    n, d, h, w = start_of(box, D, H, W, BOX_D, BOX_H, BOX_W)
    return n, d, h, w, tile_n * TILE_N


@triton.jit
def box_pixels(d, h, w, BOX_D: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr):
    """Coordinates of a box's pixels."""
    lane = tl.arange(0, BOX_D * BOX_H * BOX_W)
    return d + lane // (BOX_H * BOX_W), h + lane // BOX_W % BOX_H, w + lane % BOX_W


@triton.jit
def load_input(
    x, n, d, h, w, tap, c, C, Y, X, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    STRIDED: tl.constexpr,
):  # fmt: skip
    """What a filter tap meets under the box of output pixels that begins at (d, h, w), from channel `c` on."""
    rd, rh, rw = reach_of(tap, Y, X, dilation_d, dilation_h, dilation_w)
    if STRIDED:  # (images, rows / stride, stride, columns / stride, stride x channels)
        sh = rh + pad_h * (stride_h - 1)  # not negative, and so many whole strides too far
        sw = rw + pad_w * (stride_w - 1)
        at = [d, h + sh // stride_h - pad_h, sh % stride_h, w + sw // stride_w - pad_w, sw % stride_w * C + c]
    else:
        at = [n, d + rd - pad_d, h + rh - pad_h, w + rw - pad_w, c]
    return x.load(at)


@triton.jit
def forward_box(
    x, w, y, partial,
    rows, C, K, Cg, Kg, N, Do, Ho, Wo, Z, Y, X,
    stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
    BOX_D: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr, STRIDED: tl.constexpr,
):  # fmt: skip
    """One step is one filter tap x TILE_K channels."""
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
        b = w.load([g * Kg + col0, tap * Cg + c])  # what belongs to the next tap meets the zeros beyond the channels
        acc = tl.dot(b, a.reshape(BOX_D * BOX_H * BOX_W, TILE_K).T, acc)
    d, h, v = box_pixels(d0, h0, w0, BOX_D, BOX_H, BOX_W)
    inside = within(d < Do, d, h, v, Do, Ho, Wo)
    col = col0 + tl.arange(0, TILE_N)
    store_pixels(acc.T, y, partial, pixel_at(n, d, h, v, Do, Ho, Wo), col, inside, rows, K, Kg, g, split, SPLIT_K)


@triton.jit
def bwd_data_box(
    dy, w, dx, partial,
    pixels, C, K, Cg, Kg, N, Di, Hi, Wi, Dq, Hq, Wq, Z, Y, X,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    every_d, every_h, every_w, common_d, common_h, common_w, inverse_d, inverse_h, inverse_w,
    TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, SPLIT_K: tl.constexpr,
    BOX_D: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr,
):  # fmt: skip
    """One step is one filter tap x TILE_K output channels; see :mod:`tilewise.kernels.triton.conv_bwd_data`."""
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


def alignment(problem: GroupedConvProblem, variant: str) -> Hashable:
    """Problems of equal channels' alignment, and equal in this, share the walk's programs."""
    grid = grid_of(problem, variant)
    return tuple(box_of(grid, n) for n in BOX_PIXELS), is_strided(problem)


def programs(kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str) -> tuple[Program, ...]:
    """See :class:`tilewise.kernels.triton.conv_walks.Walk`."""
    return (_forward_programs if variant == "forward" else _bwd_data_programs)(kernel, problem, dtype)


def launches(
    kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, *tensors: Any
) -> tuple[Launch, ...]:
    """See :class:`tilewise.kernels.triton.conv_walks.Walk`."""
    return (_forward_launches if variant == "forward" else _bwd_data_launches)(kernel, problem, dtype, *tensors)


def _forward_programs(kernel: Kernel, problem: GroupedConvProblem, dtype: str) -> tuple[Program, ...]:
    box, strided = box_of(grid_of(problem, "forward"), kernel.tile_m), is_strided(problem)
    tensors = {"x": input_block(box, kernel.tile_k, strided), "w": (kernel.tile_n, kernel.tile_k), "y": None}
    constants = sides(box) | {"STRIDED": strided}
    return programs_of(forward_box, tensors, kernel, problem, dtype, problem.K, _REDUCE_BLOCK, constants)


def _forward_launches(
    kernel: Kernel, problem: GroupedConvProblem, dtype: str, x: Any, w: Any, y: Any, workspace: Any
) -> tuple[Launch, ...]:
    p, grid = problem, grid_of(problem, "forward")
    box = box_of(grid, kernel.tile_m)
    sizes = output_sizes_of(p) | named(grid, "N", "Do", "Ho", "Wo")
    given = (
        described_input(x, p, input_block(box, kernel.tile_k, is_strided(p))),
        described(w, (p.K, p.Z * p.Y * p.X * sizes["Cg"]), (kernel.tile_n, kernel.tile_k)),
    )
    tiles = (_tiles(grid, box, sizes["Kg"], kernel), p.G, kernel.split_k)
    return launches_of(_forward_programs(kernel, p, dtype), tiles, (*given, y, workspace), sizes, output_elements(p))


def _bwd_data_programs(kernel: Kernel, problem: GroupedConvProblem, dtype: str) -> tuple[Program, ...]:
    box = box_of(grid_of(problem, "bwd_data"), kernel.tile_m)
    tensors = {"dy": (1, *box, kernel.tile_k), "w": (kernel.tile_k, kernel.tile_n), "dx": None}
    return programs_of(bwd_data_box, tensors, kernel, problem, dtype, problem.C, _REDUCE_BLOCK, sides(box))


def _bwd_data_launches(
    kernel: Kernel, problem: GroupedConvProblem, dtype: str, dy: Any, w: Any, dx: Any, workspace: Any
) -> tuple[Launch, ...]:
    p, grid = problem, grid_of(problem, "bwd_data")
    box, image = box_of(grid, kernel.tile_m), joined(p, p.Di, p.Hi, p.Wi)
    sizes = class_sizes_of(p) | named(grid, "N", "Dq", "Hq", "Wq") | named(image, "N", "Di", "Hi", "Wi")
    sizes["pixels"] = p.N * p.Di * p.Hi * p.Wi
    given = (
        described(dy, (*map(int, joined(p, *p.output_sizes)), p.K), (1, *box, kernel.tile_k)),
        described(w, (p.K, p.Z * p.Y * p.X * sizes["Cg"]), (kernel.tile_k, kernel.tile_n)),
    )
    classes = p.stride_d * p.stride_h * p.stride_w
    tiles = (_tiles(grid, box, sizes["Cg"], kernel), p.G, classes * kernel.split_k)
    return launches_of(_bwd_data_programs(kernel, p, dtype), tiles, (*given, dx, workspace), sizes, input_elements(p))


def is_strided(p: GroupedConvProblem) -> bool:
    """Whether neighbouring output pixels meet input pixels that are not neighbours in a row or column."""
    return max(p.stride_h, p.stride_w) > 1


def sides(box: Box) -> dict[str, Any]:
    """A box as a function's constants."""
    return {"BOX_D": box.d, "BOX_H": box.h, "BOX_W": box.w}


def named(grid: Grid, *names: str) -> dict[str, int]:
    """A grid as a function's sizes."""
    return dict(zip(names, map(int, grid), strict=True))


def _tiles(grid: Grid, box: Box, cols: int, kernel: Kernel) -> int:
    tiles: int = triton.cdiv(cols, kernel.tile_n) * (int(padded_pixels(grid, box)) // kernel.tile_m)
    return tiles


def input_block(box: Box, channels: int, strided: bool) -> tuple[int, ...]:
    """What a load of the input brings; see :func:`load_input` for the axes."""
    return (box.d, box.h, 1, box.w, channels) if strided else (1, *box, channels)


def described_input(x: Any, p: GroupedConvProblem, block: tuple[int, ...]) -> TensorDescriptor:
    """The input whose loads bring `block`, from :func:`input_block`."""
    n, d, h, w = map(int, joined(p, p.Di, p.Hi, p.Wi))
    shape = (n, d, h, w, p.C)
    if is_strided(p):  # n is 1
        shape = (d, h // p.stride_h, p.stride_h, w // p.stride_w, p.stride_w * p.C)
    return described(x, shape, block)

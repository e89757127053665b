"""The programs of the pipeline ``mergedbox``: several groups in a tile, with a box of pixels from a tensor descriptor.

The box brings all channels of the groups of one tap. Products are computed transposed, as in ``box``. A filter's tile
comes through pointers, for it has zeros where channels of different groups meet; see ``merged``. bwd_data with a stride
of one is forward with the taps turned around, and with the roles of input and output channels exchanged.
"""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from tilewise.kernels._epilogue import EMPTY_KIND, NO_EPILOGUE, Epilogue, EpilogueKind
from tilewise.kernels.triton._boxes import BOX_PIXELS, Box, box_of, grid_of, joined, padded_pixels
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._pipeline import Implementation
from tilewise.kernels.triton._shapes import merged_groups
from tilewise.kernels.triton.programs._epilogue import ended_pixels
from tilewise.kernels.triton.programs._program import Launch, Program, described
from tilewise.kernels.triton.programs._tiles import share_of
from tilewise.kernels.triton.programs.conv._box_loads import (
    box_pixels,
    described_input,
    input_block,
    is_strided,
    load_input,
    named,
    sides,
    start_of,
)
from tilewise.kernels.triton.programs.conv._merged import merged_alignment, merged_constants, place_of
from tilewise.kernels.triton.programs.conv._shared import (
    IMAGE_BLOCK,
    Function,
    launches_of,
    pixel_at,
    programs_of,
    sizes_of,
    store_pixels,
    within,
)
from tilewise.ops import GroupedConvProblem, input_elements, output_elements

if TYPE_CHECKING:
    from torch import Tensor


@triton.jit
def conv_merged_box(
    x, w, y, partial, bias, residual,
    rows, C, K, Cg, Kg, groups, N, Do, Ho, Wo, Z, Y, X,
    stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    TILE_N: tl.constexpr, TILE_K: tl.constexpr, SPLIT_K: tl.constexpr,
    BOX_D: tl.constexpr, BOX_H: tl.constexpr, BOX_W: tl.constexpr, STRIDED: tl.constexpr, TURNED: tl.constexpr,
    RUN: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, WHOLE: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Compute forward, or bwd_data if TURNED; one step is one filter tap x TILE_K channels that are summed over."""
    if TURNED:
        pad_d = (Z - 1) * dilation_d - pad_d
        pad_h = (Y - 1) * dilation_h - pad_h
        pad_w = (X - 1) * dilation_w - pad_w
    first = tl.program_id(1) * groups
    split = tl.program_id(2)
    n, d0, h0, w0 = start_of(tl.program_id(0), Do, Ho, Wo, BOX_D, BOX_H, BOX_W)
    col, taps = tl.arange(0, TILE_N), Z * Y * X
    channels = tl.multiple_of(tl.minimum(groups * Cg, C - first * Cg), OUTPUTS if TURNED else INPUTS)
    filters = tl.multiple_of(tl.minimum(groups * Kg, K - first * Kg), INPUTS if TURNED else OUTPUTS)
    if TURNED:
        group, place = place_of(col, Kg, RUN)
        w_col = w + tl.multiple_of(first * Cg * taps * Kg, RUN) + place[:, None]
    else:
        group = col // Kg
        w_col = w + (first * Kg + col)[:, None] * tl.multiple_of(taps * Cg, RUN)

    steps_c = 1 if WHOLE else tl.cdiv(groups * Cg, TILE_K)
    begin, end = share_of(split, taps * steps_c, SPLIT_K)
    acc = tl.zeros((TILE_N, BOX_D * BOX_H * BOX_W), dtype=tl.float32)
    for step in range(begin, end):
        tap, c0 = step // steps_c, step % steps_c * TILE_K
        a = load_input(
            x, n, d0, h0, w0, tap, first * Cg + c0, C, Y, X, stride_h, stride_w, pad_d, pad_h, pad_w,
            dilation_d, dilation_h, dilation_w, STRIDED,
        )  # fmt: skip
        c = c0 + tl.arange(0, TILE_K)
        if TURNED:
            own = c // Cg
            at = c[None, :] * tl.multiple_of(taps * Kg, RUN) + tl.multiple_of((taps - 1 - tap) * Kg, RUN)
        else:
            own, place = place_of(c, Cg, RUN)
            at = place[None, :] + tl.multiple_of(tap * Cg, RUN)
        mask = (group[:, None] == own[None, :]) & (c < channels)[None, :] & (col < filters)[:, None]
        b = tl.load(w_col + at, mask=mask, other=0.0)
        acc = tl.dot(b, a.reshape(BOX_D * BOX_H * BOX_W, TILE_K).T, acc)
    d, h, v = box_pixels(d0, h0, w0, BOX_D, BOX_H, BOX_W)
    inside = within(d < Do, d, h, v, Do, Ho, Wo)
    pixel, at = pixel_at(n, d, h, v, Do, Ho, Wo), tl.multiple_of(first * Kg, INPUTS if TURNED else OUTPUTS)
    acc = ended_pixels(acc.T, pixel, at + col, inside, K, K, 0, bias, residual, ACTIVATION)
    store_pixels(acc, y + at, partial + at, pixel, col, inside, rows, K, filters, 0, split, SPLIT_K)


def _alignment(problem: GroupedConvProblem, variant: str, dtype: str) -> Hashable:
    grid = grid_of(problem, variant)
    boxes = tuple(box_of(grid, n) for n in BOX_PIXELS)
    return merged_alignment(problem, variant, dtype), boxes, is_strided(problem)


def _block(problem: GroupedConvProblem, kernel: Kernel, box: Box) -> tuple[int, ...]:
    return input_block(box, kernel.tile_k, is_strided(problem))


def _programs(
    kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, kind: EpilogueKind = EMPTY_KIND
) -> tuple[Program, ...]:
    box, turned = box_of(grid_of(problem, variant), kernel.tile_m), variant == "bwd_data"
    tensors = {"x": _block(problem, kernel, box), "w": None, "y": None}
    constants = sides(box) | {"STRIDED": is_strided(problem), "TURNED": turned}
    constants |= merged_constants(kernel, problem, variant)
    function = Function(conv_merged_box, tensors, problem.C if turned else problem.K, IMAGE_BLOCK, constants)
    exchanged = _exchanged(problem) if turned else problem
    return programs_of(function, kernel, exchanged, dtype, kind)


def _exchanged(p: GroupedConvProblem) -> GroupedConvProblem:
    """Return the problem with input and output channels exchanged: of these, programs read which are aligned."""
    return replace(p, C=p.K, K=p.C)


def _launches(
    kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, *tensors: Tensor,
    epilogue: Epilogue = NO_EPILOGUE,
) -> tuple[Launch, ...]:  # fmt: skip
    image, *rest = tensors
    p, grid, groups = problem, grid_of(problem, variant), int(merged_groups(kernel, problem, variant))
    box, turned = box_of(grid, kernel.tile_m), variant == "bwd_data"
    sizes = sizes_of(_exchanged(p) if turned else p) | named(grid, "N", "Do", "Ho", "Wo") | {"groups": groups}
    block = _block(p, kernel, box)
    if turned:
        descriptor = described(image, (*map(int, joined(p, *p.output_sizes)), p.K), block)
    else:
        descriptor = described_input(image, p, block)
    sizes["rows"] = sizes["N"] * sizes["Do"] * sizes["Ho"] * sizes["Wo"]
    tiles = int(padded_pixels(grid, box)) // kernel.tile_m
    programs = _programs(kernel, p, variant, dtype, epilogue.kind)
    results = input_elements(p) if turned else output_elements(p)
    launched = (tiles, triton.cdiv(p.G, groups), kernel.split_k)
    return launches_of(programs, launched, (descriptor, *rest), sizes, results, epilogue)


_IMAGES = Implementation(_programs, _launches, _alignment)

IMPLEMENTATIONS = {("grouped_conv", "forward"): _IMAGES, ("grouped_conv", "bwd_data"): _IMAGES}

"""The programs of the pipeline ``merged``: a tile computes several narrow groups at once, as one wider group.

The channels of neighbouring groups lie side by side, so a tile of pixels is loaded as if its groups were one. The
filter's tile is block-diagonal: a mask zeroes pairs of channels of different groups. These zeros multiply other groups'
channels, so a value that is not finite may reach all groups of its tile.
"""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from math import gcd
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from tilewise.kernels._epilogue import EMPTY_KIND, NO_EPILOGUE, Epilogue, EpilogueKind
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._pipeline import Implementation
from tilewise.kernels.triton._shapes import merged_groups
from tilewise.kernels.triton.programs._epilogue import ended_pixels
from tilewise.kernels.triton.programs._program import VECTOR, Launch, Program
from tilewise.kernels.triton.programs._tiles import share_of
from tilewise.kernels.triton.programs.conv._residues import class_sizes_of, residues_of, taps_of
from tilewise.kernels.triton.programs.conv._shared import (
    FILTER_BLOCK,
    IMAGE_BLOCK,
    Function,
    channel_divisors,
    launches_of,
    output_sizes_of,
    pixel_at,
    pixels,
    programs_of,
    reach_of,
    store_pixels,
    within,
)
from tilewise.ops import GroupedConvProblem, input_elements, output_elements, weight_elements

if TYPE_CHECKING:
    from torch import Tensor


@triton.jit
def place_of(channel, Cg, RUN: tl.constexpr):
    """Return the group of each channel of a tile, and its place there; RUN divides Cg."""
    group = tl.max_constancy(channel // Cg, RUN)
    return group, tl.max_contiguous(tl.multiple_of(channel % Cg, RUN), RUN)


@triton.jit
def conv_merged(
    x, w, y, partial, bias, residual,
    rows, C, K, Cg, Kg, groups, Di, Hi, Wi, Do, Ho, Wo, Z, Y, X,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, SPLIT_K: tl.constexpr,
    RUN: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, WHOLE: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Compute forward; one step is one filter tap x TILE_K channels; WHOLE: these are all channels of the groups."""
    first = tl.program_id(1) * groups
    split = tl.program_id(2)
    row = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    col = tl.arange(0, TILE_N)
    lane = tl.arange(0, TILE_K)
    n, od, oh, ow = pixels(row, Do, Ho, Wo)
    id0 = od * stride_d - pad_d
    ih0 = oh * stride_h - pad_h
    iw0 = ow * stride_w - pad_w
    taps = Z * Y * X
    channels = tl.multiple_of(tl.minimum(groups * Cg, C - first * Cg), INPUTS)
    filters = tl.multiple_of(tl.minimum(groups * Kg, K - first * Kg), OUTPUTS)
    x_tile = x + tl.multiple_of(first * Cg, INPUTS)
    w_col = w + (first * Kg + col)[None, :] * tl.multiple_of(taps * Cg, RUN)
    own = (col // Kg)[None, :]

    steps_c = 1 if WHOLE else tl.cdiv(groups * Cg, TILE_K)
    begin, end = share_of(split, taps * steps_c, SPLIT_K)
    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for step in range(begin, end):
        tap = step // steps_c
        c = (step % steps_c) * TILE_K + lane
        rd, rh, rw = reach_of(tap, Y, X, dilation_d, dilation_h, dilation_w)
        d, h, v = id0 + rd, ih0 + rh, iw0 + rw
        inside = within(row < rows, d, h, v, Di, Hi, Wi)
        pixel = pixel_at(n, d, h, v, Di, Hi, Wi)
        a = tl.load(x_tile + pixel[:, None] * C + c[None, :], mask=inside[:, None] & (c < channels)[None, :], other=0.0)
        group, place = place_of(c, Cg, RUN)
        mask = (group[:, None] == own) & (c < channels)[:, None] & (col < filters)[None, :]
        b = tl.load(w_col + tl.multiple_of(tap * Cg, RUN) + place[:, None], mask=mask, other=0.0)
        acc = tl.dot(a, b, acc)
    at = tl.multiple_of(first * Kg, OUTPUTS)
    acc = ended_pixels(acc, row, at + col, row < rows, K, K, 0, bias, residual, ACTIVATION)
    store_pixels(acc, y + at, partial + at, row, col, row < rows, rows, K, filters, 0, split, SPLIT_K)


@triton.jit
def bwd_data_merged(
    dy, w, dx, partial,
    rows, C, K, Cg, Kg, groups, N, Di, Hi, Wi, Do, Ho, Wo, Dq, Hq, Wq, Z, Y, X,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    every_d, every_h, every_w, common_d, common_h, common_w, inverse_d, inverse_h, inverse_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, SPLIT_K: tl.constexpr,
    RUN: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """Compute bwd_data; one step is one filter tap x TILE_K output channels; WHOLE: these are all of the groups."""
    first = tl.program_id(1) * groups
    split = tl.program_id(2) % SPLIT_K
    residue = tl.program_id(2) // SPLIT_K
    rd, rh, rw = residues_of(residue, stride_h, stride_w)
    z0, nz, d0, leap_d = taps_of(rd, Z, stride_d, pad_d, dilation_d, every_d, common_d, inverse_d)
    y0, ny, h0, leap_h = taps_of(rh, Y, stride_h, pad_h, dilation_h, every_h, common_h, inverse_h)
    x0, nx, w0, leap_w = taps_of(rw, X, stride_w, pad_w, dilation_w, every_w, common_w, inverse_w)
    line, plane = tl.maximum(nx, 1), tl.maximum(ny * nx, 1)  # a class without taps must not divide by zero

    row = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    col = tl.arange(0, TILE_N)
    lane = tl.arange(0, TILE_K)
    n, dq, hq, wq = pixels(row, Dq, Hq, Wq)
    od0, oh0, ow0 = dq + d0, hq + h0, wq + w0
    taps = Z * Y * X
    filters = tl.multiple_of(tl.minimum(groups * Kg, K - first * Kg), OUTPUTS)
    channels = tl.multiple_of(tl.minimum(groups * Cg, C - first * Cg), INPUTS)
    dy_tile = dy + tl.multiple_of(first * Kg, OUTPUTS)
    group, place = place_of(col, Cg, RUN)
    stride = tl.multiple_of(taps * Cg, RUN)
    w_col = w + tl.multiple_of(first * Kg * taps * Cg, RUN) + place[None, :]

    steps_k = 1 if WHOLE else tl.cdiv(groups * Kg, TILE_K)
    begin, end = share_of(split, nz * ny * nx * steps_k, SPLIT_K)
    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for step in range(begin, end):
        tap = step // steps_k
        k = (step % steps_k) * TILE_K + lane
        z, y, x = tap // plane, tap % plane // line, tap % line  # counted within the class
        od, oh, ow = od0 - z * leap_d, oh0 - y * leap_h, ow0 - x * leap_w
        inside = within(row < rows, od, oh, ow, Do, Ho, Wo)
        pixel = pixel_at(n, od, oh, ow, Do, Ho, Wo)
        a = tl.load(dy_tile + pixel[:, None] * K + k[None, :], mask=inside[:, None] & (k < filters)[None, :], other=0.0)
        tap = ((z0 + z * every_d) * Y + y0 + y * every_h) * X + x0 + x * every_w
        mask = ((k // Kg)[:, None] == group[None, :]) & (k < filters)[:, None] & (col < channels)[None, :]
        b = tl.load(w_col + k[:, None] * stride + tl.multiple_of(tap * Cg, RUN), mask=mask, other=0.0)
        acc = tl.dot(a, b, acc)
    d, h, v = dq * stride_d + rd, hq * stride_h + rh, wq * stride_w + rw
    inside = within(row < rows, d, h, v, Di, Hi, Wi)
    pixel, at = pixel_at(n, d, h, v, Di, Hi, Wi), tl.multiple_of(first * Cg, INPUTS)
    store_pixels(acc, dx + at, partial + at, pixel, col, inside, N * Di * Hi * Wi, C, channels, 0, split, SPLIT_K)


@triton.jit
def bwd_weight_merged(
    dy, x, dw, partial,
    rows, C, K, Cg, Kg, groups, Di, Hi, Wi, Do, Ho, Wo, Z, Y, X,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, SPLIT_K: tl.constexpr,
    RUN: tl.constexpr, INPUTS: tl.constexpr, OUTPUTS: tl.constexpr,
):  # fmt: skip
    """Compute bwd_weight for columns of the flattened (tap, channel of all groups) index; one step is TILE_K pixels."""
    first = tl.program_id(1) * groups
    split = tl.program_id(2)
    taps = Z * Y * X
    inputs = tl.multiple_of(groups * Cg, INPUTS)
    channels = tl.multiple_of(tl.minimum(inputs, C - first * Cg), INPUTS)
    filters = tl.multiple_of(tl.minimum(groups * Kg, K - first * Kg), OUTPUTS)
    k = tl.arange(0, TILE_M)
    at = tl.program_id(0) * TILE_N + tl.arange(0, TILE_N)
    lane = tl.arange(0, TILE_K)
    tap = tl.max_constancy(at // inputs, INPUTS)
    c = tl.max_contiguous(tl.multiple_of(at % inputs, INPUTS), INPUTS)
    useful = (tap < taps) & (c < channels)
    rd, rh, rw = reach_of(tap, Y, X, dilation_d, dilation_h, dilation_w)
    d0, h0, w0 = (rd - pad_d)[None, :], (rh - pad_h)[None, :], (rw - pad_w)[None, :]
    dy_k = dy + tl.multiple_of(first * Kg, OUTPUTS) + k[:, None]
    x_c = x + tl.multiple_of(first * Cg, INPUTS) + c[None, :]

    begin, end = share_of(split, tl.cdiv(rows, TILE_K), SPLIT_K)
    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for step in range(begin, end):
        row = step * TILE_K + lane
        n, od, oh, ow = pixels(row, Do, Ho, Wo)
        d = (od * stride_d)[:, None] + d0
        h = (oh * stride_h)[:, None] + h0
        v = (ow * stride_w)[:, None] + w0
        inside = within((row < rows)[:, None] & useful[None, :], d, h, v, Di, Hi, Wi)
        pixel = pixel_at(n[:, None], d, h, v, Di, Hi, Wi)
        a = tl.load(dy_k + row[None, :] * K, mask=(k < filters)[:, None] & (row < rows)[None, :], other=0.0)
        b = tl.load(x_c + pixel * C, mask=inside, other=0.0)
        acc = tl.dot(a, b, acc)
    group, place = place_of(c, Cg, RUN)
    mask = ((k // Kg)[:, None] == group[None, :]) & (k < filters)[:, None] & useful[None, :]
    offset = (first * Kg + k)[:, None] * (taps * Cg) + (tap * Cg + place)[None, :]
    if SPLIT_K == 1:
        tl.store(dw + offset, acc.to(dw.dtype.element_ty), mask=mask)
    else:
        tl.store(partial + split.to(tl.int64) * K * taps * Cg + offset, acc, mask=mask)


def merged_constants(kernel: Kernel, problem: GroupedConvProblem, variant: str) -> dict[str, int]:
    """Return the constants of a function besides the kernel's settings.

    RUN divides the input channels of a group, INPUTS and OUTPUTS the channels of a tile's groups: so many elements may
    be loaded at once. WHOLE tells that a step has all channels of the groups.
    """
    p, groups = problem, int(merged_groups(kernel, problem, variant))
    inputs, outputs = groups * (p.C // p.G), groups * (p.K // p.G)
    constants = {
        "RUN": gcd(p.C // p.G, VECTOR),
        "INPUTS": gcd(inputs, p.C, VECTOR),
        "OUTPUTS": gcd(outputs, p.K, VECTOR),
    }
    if variant != "bwd_weight":
        constants["WHOLE"] = (inputs if variant == "forward" else outputs) <= kernel.tile_k
    return constants


def merged_alignment(problem: GroupedConvProblem, variant: str, dtype: str) -> Hashable:
    """Return the key of a problem's programs; of problems with groups, it holds the numbers of channels and groups."""
    several = 1 < problem.G < max(problem.C, problem.K)
    sizes = (problem.G, problem.C, problem.K) if several else None
    return channel_divisors(problem), sizes


@dataclass(frozen=True)
class _Variant:
    """A Triton function with the facts that differ between the variants."""

    fn: object  # a Triton function
    tensors: tuple[str, str, str]
    contiguous: Callable[[GroupedConvProblem], int]
    reduce_block: int
    sizes: Callable[[GroupedConvProblem], dict[str, int]]
    results: Callable[[GroupedConvProblem], int]

    def programs(
        self, kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, kind: EpilogueKind = EMPTY_KIND
    ) -> tuple[Program, ...]:
        """Return the programs; see :class:`tilewise.kernels.triton.Implementation`."""
        tensors, constants = dict.fromkeys(self.tensors), merged_constants(kernel, problem, variant)
        function = Function(self.fn, tensors, self.contiguous(problem), self.reduce_block, constants)
        return programs_of(function, kernel, problem, dtype, kind)

    def launches(
        self, kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, *tensors: Tensor,
        epilogue: Epilogue = NO_EPILOGUE,
    ) -> tuple[Launch, ...]:  # fmt: skip
        """Return the launches; see :class:`tilewise.kernels.triton.Implementation`."""
        groups, sizes = int(merged_groups(kernel, problem, variant)), self.sizes(problem)
        tiles, shares = triton.cdiv(sizes["rows"], kernel.tile_m), kernel.split_k
        if variant == "bwd_data":
            shares *= problem.stride_d * problem.stride_h * problem.stride_w
        if variant == "bwd_weight":
            tiles = triton.cdiv(problem.Z * problem.Y * problem.X * groups * sizes["Cg"], kernel.tile_n)
        grid = (tiles, triton.cdiv(problem.G, groups), shares)
        programs, sizes = self.programs(kernel, problem, variant, dtype, epilogue.kind), sizes | {"groups": groups}
        return launches_of(programs, grid, tensors, sizes, self.results(problem), epilogue)

    def implementation(self) -> Implementation:
        """Return the variant for the registry."""
        return Implementation(self.programs, self.launches, merged_alignment)


_FORWARD = _Variant(conv_merged, ("x", "w", "y"), lambda p: p.K, IMAGE_BLOCK, output_sizes_of, output_elements)
_BWD_DATA = _Variant(bwd_data_merged, ("dy", "w", "dx"), lambda p: p.C, IMAGE_BLOCK, class_sizes_of, input_elements)
_BWD_WEIGHT = _Variant(
    bwd_weight_merged, ("dy", "x", "dw"), lambda p: p.C // p.G, FILTER_BLOCK, output_sizes_of, weight_elements
)

IMPLEMENTATIONS = {
    ("grouped_conv", "forward"): _FORWARD.implementation(),
    ("grouped_conv", "bwd_data"): _BWD_DATA.implementation(),
    ("grouped_conv", "bwd_weight"): _BWD_WEIGHT.implementation(),
}

"""The programs of the pipeline ``strip``: depthwise, a thread keeps neighbouring pixels of a row.

In forward and bwd_data the loads of a filter row serve all pixels of the strip from registers, and so do its taps. That
takes the filter's width, stride and dilation along the row as constants: each set of them has its own program. Without
a stride, bwd_data is the same correlation, with a filter turned around and padded by its reach beyond the image.

In bwd_weight a column of the image is loaded once for all taps of a filter row, into one sum per tap. A program follows
rows of pixels from end to end, so that only their beginnings need divisions.
"""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

from collections.abc import Hashable
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from tilewise.kernels._epilogue import EMPTY_KIND, NO_EPILOGUE, Epilogue, EpilogueKind
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._pipeline import Implementation
from tilewise.kernels.triton.programs._epilogue import ended_pixels
from tilewise.kernels.triton.programs._program import Launch, Program
from tilewise.kernels.triton.programs._tiles import indices_of, share_of
from tilewise.kernels.triton.programs.conv._shared import (
    FILTER_BLOCK,
    IMAGE_BLOCK,
    Function,
    channel_divisors,
    launches_of,
    pixel_at,
    pixels,
    programs_of,
    sizes_of,
    store_taps,
    within,
)
from tilewise.ops import GroupedConvProblem, weight_elements

if TYPE_CHECKING:
    from torch import Tensor


@triton.jit
def conv_strip(
    x, w, y, bias, residual,
    strips, C, Di, Hi, Wi, Do, Ho, Wo, Z, Y,
    stride_d, stride_h, pad_d, pad_h, pad_w, dilation_d, dilation_h,
    X: tl.constexpr, stride_w: tl.constexpr, dilation_w: tl.constexpr, TURNED: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr, ACTIVATION: tl.constexpr,
):  # fmt: skip
    """Compute forward, or bwd_data if TURNED: columns are channels, a strip is TILE_K pixels of a row."""
    if TURNED:
        pad_d = (Z - 1) * dilation_d - pad_d
        pad_h = (Y - 1) * dilation_h - pad_h
        pad_w = (X - 1) * dilation_w - pad_w
    strip, col = indices_of(tl.program_id(0), strips, C, TILE_M // TILE_K, TILE_N, GROUP_M)
    n, od, oh, ow = pixels(strip, Do, Ho, tl.cdiv(Wo, TILE_K))
    ow *= TILE_K
    iw = ow * stride_w - pad_w
    taps = Z * Y * X
    acc = (tl.zeros((TILE_M // TILE_K, TILE_N), dtype=tl.float32),) * TILE_K
    for fz in range(Z):
        for fy in range(Y):
            b: tl.tuple = ()
            for fx in tl.static_range(X):
                tap = (fz * Y + fy) * X + fx
                if TURNED:
                    tap = taps - 1 - tap
                b += (tl.load(w + col * taps + tap, mask=col < C, other=0.0).to(tl.float32)[None, :],)
            d, h = od * stride_d - pad_d + fz * dilation_d, oh * stride_h - pad_h + fy * dilation_h
            start = x + pixel_at(n, d, h, iw, Di, Hi, Wi)[:, None] * C + col[None, :]
            # a row outside the image begins behind its last column
            v = tl.where(within(strip < strips, d, h, 0, Di, Hi, 1), iw, Wi)
            for j in tl.static_range((TILE_K - 1) * stride_w + (X - 1) * dilation_w + 1):
                mask = ((v + j >= 0) & (v + j < Wi))[:, None] & (col < C)[None, :]
                a = tl.load(start + j * C, mask=mask, other=0.0).to(tl.float32)
                for fx in tl.static_range(X):
                    for p in tl.static_range(TILE_K):
                        if p * stride_w + fx * dilation_w == j:
                            acc = acc[:p] + (acc[p] + a * b[fx],) + acc[p + 1 :]  # noqa: RUF005 (not in Triton)
    pixel = pixel_at(n, od, oh, ow, Do, Ho, Wo)
    start = y + pixel[:, None] * C + col[None, :]
    for p in tl.static_range(TILE_K):
        inside = (strip < strips) & (ow + p < Wo)
        total = ended_pixels(acc[p], pixel + p, col, inside, C, C, 0, bias, residual, ACTIVATION)
        tl.store(start + p * C, total.to(y.dtype.element_ty), mask=inside[:, None] & (col < C)[None, :])


@triton.jit
def bwd_weight_strip(
    dy, x, dw, partial,
    lines, C, Di, Hi, Wi, Do, Ho, Wo, Z, Y,
    stride_d, stride_h, pad_d, pad_h, pad_w, dilation_d, dilation_h,
    X: tl.constexpr, stride_w: tl.constexpr, dilation_w: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, SPLIT_K: tl.constexpr,
):  # fmt: skip
    """Compute bwd_weight for a filter row of TILE_N channels; a step is TILE_M / TILE_K rows of the output."""
    split = tl.program_id(2)
    filter_rows = Z * Y
    filter_row = tl.program_id(0) % filter_rows
    col = tl.program_id(0) // filter_rows * TILE_N + tl.arange(0, TILE_N)
    lane = tl.arange(0, TILE_M // TILE_K)
    d0, h0 = filter_row // Y * dilation_d - pad_d, filter_row % Y * dilation_h - pad_h
    begin, end = share_of(split, tl.cdiv(lines, TILE_M // TILE_K), SPLIT_K)
    acc = (tl.zeros((TILE_M // TILE_K, TILE_N), dtype=tl.float32),) * X
    for step in range(begin, end):
        line = step * (TILE_M // TILE_K) + lane
        n, od, oh, _ = pixels(line, Do, Ho, 1)
        d, h = od * stride_d + d0, oh * stride_h + h0
        inside = within(line < lines, d, h, 0, Di, Hi, 1)
        dy_line = dy + (line * Wo)[:, None] * C + col[None, :]
        x_line = x + pixel_at(n, d, h, 0, Di, Hi, Wi)[:, None] * C + col[None, :]
        for w in range(0, Wo, TILE_K):
            a: tl.tuple = ()
            column = tl.where(inside, w, Wo)  # a row that meets none of the image begins behind its last column
            for p in tl.static_range(TILE_K):
                mask = (column + p < Wo)[:, None] & (col < C)[None, :]
                a += (tl.load(dy_line + (w + p) * C, mask=mask, other=0.0).to(tl.float32),)
            v = w * stride_w - pad_w
            column = tl.where(inside, v, Wi)
            for j in tl.static_range((TILE_K - 1) * stride_w + (X - 1) * dilation_w + 1):
                mask = ((column + j >= 0) & (column + j < Wi))[:, None] & (col < C)[None, :]
                b = tl.load(x_line + (v + j) * C, mask=mask, other=0.0).to(tl.float32)
                for fx in tl.static_range(X):
                    for p in tl.static_range(TILE_K):
                        if p * stride_w + fx * dilation_w == j:
                            acc = acc[:fx] + (acc[fx] + a[p] * b,) + acc[fx + 1 :]  # noqa: RUF005 (not in Triton)
    taps = filter_rows * X
    for fx in tl.static_range(X):
        store_taps(tl.sum(acc[fx], 0), dw, partial, filter_row * X + fx, col, taps, C, split, SPLIT_K)


def _alignment(problem: GroupedConvProblem, variant: str, dtype: str) -> Hashable:
    constants = tuple(_constants_of(problem).values()) if problem.C == problem.K == problem.G else None
    return channel_divisors(problem), constants


def _constants_of(problem: GroupedConvProblem) -> dict[str, int]:
    """Return the constants that a strip's code is unrolled for."""
    return {"X": problem.X, "stride_w": problem.stride_w, "dilation_w": problem.dilation_w}


def _programs(
    kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, kind: EpilogueKind = EMPTY_KIND
) -> tuple[Program, ...]:
    tensors, constants = dict.fromkeys(("x", "w", "y")), _constants_of(problem) | {"TURNED": variant == "bwd_data"}
    function = Function(conv_strip, tensors, problem.C, IMAGE_BLOCK, constants)
    return programs_of(function, kernel, problem, dtype, kind)


def _launches(
    kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, *tensors: Tensor,
    epilogue: Epilogue = NO_EPILOGUE,
) -> tuple[Launch, ...]:  # fmt: skip
    sizes = sizes_of(problem)
    if variant == "bwd_data":  # the output is read, the input written
        sizes |= {f"{axis}{a}": sizes[f"{axis}{b}"] for axis in "DHW" for a, b in ("io", "oi")}
    sizes["strips"] = sizes["N"] * sizes["Do"] * sizes["Ho"] * triton.cdiv(sizes["Wo"], kernel.tile_k)
    tiles = triton.cdiv(sizes["strips"], kernel.tile_m // kernel.tile_k) * triton.cdiv(problem.C, kernel.tile_n)
    programs = _programs(kernel, problem, variant, dtype, epilogue.kind)
    return launches_of(programs, (tiles, 1, 1), tensors, sizes, 0, epilogue)


def _weight_programs(kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str) -> tuple[Program, ...]:
    tensors, constants = dict.fromkeys(("dy", "x", "dw")), _constants_of(problem)
    return programs_of(Function(bwd_weight_strip, tensors, 1, FILTER_BLOCK, constants), kernel, problem, dtype)


def _weight_launches(
    kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, *tensors: Tensor
) -> tuple[Launch, ...]:
    sizes = sizes_of(problem)
    sizes["lines"] = sizes["N"] * sizes["Do"] * sizes["Ho"]
    grid = (problem.Z * problem.Y * triton.cdiv(problem.C, kernel.tile_n), 1, kernel.split_k)
    programs = _weight_programs(kernel, problem, variant, dtype)
    return launches_of(programs, grid, tensors, sizes, weight_elements(problem))


_IMAGES = Implementation(_programs, _launches, _alignment)

IMPLEMENTATIONS = {
    ("grouped_conv", "forward"): _IMAGES,
    ("grouped_conv", "bwd_data"): _IMAGES,
    ("grouped_conv", "bwd_weight"): Implementation(_weight_programs, _weight_launches, _alignment),
}

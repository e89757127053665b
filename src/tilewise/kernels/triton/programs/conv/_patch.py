"""The program of the pipeline ``patch``: a row is a patch of input pixels, whose pixels and channels are columns."""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

from math import gcd
from typing import TYPE_CHECKING

import triton
import triton.language as tl

from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._patches import patch_columns, patches, strides_across
from tilewise.kernels.triton._pipeline import Implementation
from tilewise.kernels.triton.programs._program import VECTOR, Launch, Program
from tilewise.kernels.triton.programs.conv._shared import (
    IMAGE_BLOCK,
    Function,
    channel_divisors,
    launches_of,
    pixel_at,
    pixels,
    programs_of,
    sizes_of,
    within,
)
from tilewise.ops import GroupedConvProblem, input_elements

if TYPE_CHECKING:
    from torch import Tensor


@triton.jit
def window_of(taps, stride, pad, dilation, strides):
    """Return the first output pixel that reaches a patch of so many strides along one axis, and their number.

    The first is counted from the patch's number x `strides`. No number between is negative: divisions would round up.
    """
    reach = (taps - 1) * dilation
    before = reach // stride + 1
    first = tl.cdiv(pad + before * stride - reach, stride) - before
    return first, (stride * strides - 1 + pad) // stride - first + 1


@triton.jit
def tap_at(distance, taps, dilation):
    """Return the tap that reaches so many pixels, and whether there is one."""
    return distance // dilation, (distance >= 0) & (distance % dilation == 0) & (distance < taps * dilation)


@triton.jit
def bwd_data_patch(
    dy, w, dx,
    rows, columns, strides, C, K, Di, Hi, Wi, Do, Ho, Wo, Dq, Hq, Wq, Z, Y, X,
    stride_d, stride_h, stride_w, pad_d, pad_h, pad_w, dilation_d, dilation_h, dilation_w,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, RUN: tl.constexpr,
):  # fmt: skip
    """Compute bwd_data; one step is one output pixel of the window x TILE_K output channels; RUN divides C."""
    wide = stride_w * strides
    row = tl.program_id(0) * TILE_M + tl.arange(0, TILE_M)
    col = tl.arange(0, TILE_N)
    lane = tl.arange(0, TILE_K)
    n, dq, hq, wq = pixels(row, Dq, Hq, Wq)
    place = tl.max_constancy(col // C, RUN)
    c = tl.max_contiguous(tl.multiple_of(col % C, RUN), RUN)
    place_d, place_h, place_w = place // wide // stride_h, place // wide % stride_h, place % wide
    first_d, count_d = window_of(Z, stride_d, pad_d, dilation_d, 1)
    first_h, count_h = window_of(Y, stride_h, pad_h, dilation_h, 1)
    first_w, count_w = window_of(X, stride_w, pad_w, dilation_w, strides)
    od0, oh0, ow0 = dq + first_d, hq + first_h, wq * strides + first_w
    reach_d = place_d + pad_d - first_d * stride_d
    reach_h = place_h + pad_h - first_h * stride_h
    reach_w = place_w + pad_w - first_w * stride_w

    steps_k = tl.cdiv(K, TILE_K)
    acc = tl.zeros((TILE_M, TILE_N), dtype=tl.float32)
    for step in range(0, count_d * count_h * count_w * steps_k):
        at = step // steps_k
        k = (step % steps_k) * TILE_K + lane
        td, th, tw = at // (count_h * count_w), at // count_w % count_h, at % count_w
        od, oh, ow = od0 + td, oh0 + th, ow0 + tw
        inside = within(row < rows, od, oh, ow, Do, Ho, Wo)
        pixel = pixel_at(n, od, oh, ow, Do, Ho, Wo)
        a = tl.load(dy + pixel[:, None] * K + k[None, :], mask=inside[:, None] & (k < K)[None, :], other=0.0)
        z, has_z = tap_at(reach_d - td * stride_d, Z, dilation_d)
        y, has_y = tap_at(reach_h - th * stride_h, Y, dilation_h)
        x, has_x = tap_at(reach_w - tw * stride_w, X, dilation_w)
        useful = (col < columns) & has_z & has_y & has_x
        w_row = k * (Z * Y * X * C)
        w_col = ((z * Y + y) * X + x) * C + c
        b = tl.load(w + w_row[:, None] + w_col[None, :], mask=(k < K)[:, None] & useful[None, :], other=0.0)
        acc = tl.dot(a, b, acc)
    d = (dq * stride_d)[:, None] + place_d[None, :]
    h = (hq * stride_h)[:, None] + place_h[None, :]
    v = (wq * wide)[:, None] + place_w[None, :]
    inside = (row < rows)[:, None] & (col < columns)[None, :] & (d < Di) & (h < Hi) & (v < Wi)
    pixel = pixel_at(n[:, None], d, h, v, Di, Hi, Wi)
    tl.store(dx + pixel * C + c[None, :], acc.to(dx.dtype.element_ty), mask=inside)


def _programs(kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str) -> tuple[Program, ...]:
    constants = {"RUN": gcd(problem.C, VECTOR)}
    function = Function(bwd_data_patch, dict.fromkeys(("dy", "w", "dx")), problem.C, IMAGE_BLOCK, constants)
    return programs_of(function, kernel, problem, dtype)


def _launches(
    kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, *tensors: Tensor
) -> tuple[Launch, ...]:
    p, strides, rows = problem, int(strides_across(problem)), int(patches(problem))
    across = {
        "Dq": triton.cdiv(p.Di, p.stride_d),
        "Hq": triton.cdiv(p.Hi, p.stride_h),
        "Wq": triton.cdiv(p.Wi, p.stride_w * strides),
    }
    sizes = {**sizes_of(p), **across, "rows": rows, "columns": int(patch_columns(p)), "strides": strides}
    grid = (triton.cdiv(rows, kernel.tile_m), 1, 1)
    return launches_of(_programs(kernel, p, variant, dtype), grid, tensors, sizes, input_elements(p))


IMPLEMENTATIONS = {("grouped_conv", "bwd_data"): Implementation(_programs, _launches, channel_divisors)}

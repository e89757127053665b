"""The walk ``strip`` of forward and of the input's gradient: depthwise, a thread keeps neighbouring pixels of a row.

What a filter row reads of the image serves all pixels of the strip from registers, and so do its taps. That takes the
filter's width, stride and dilation along the row as constants: each set of them is a program. Without a stride the
input's gradient is the same correlation, with a filter turned around and padded by what the filter reaches beyond.
"""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import triton
import triton.language as tl

from tilewise.kernels.kernel import Kernel
from tilewise.kernels.triton.conv import launches_of, pixel_at, pixels, programs_of, sizes_of, within
from tilewise.kernels.triton.program import Launch, Program
from tilewise.kernels.triton.tiles import indices_of
from tilewise.ops import GroupedConvProblem


@triton.jit
def conv_strip(
    x, w, y,
    strips, C, Di, Hi, Wi, Do, Ho, Wo, Z, Y,
    stride_d, stride_h, pad_d, pad_h, pad_w, dilation_d, dilation_h,
    X: tl.constexpr, stride_w: tl.constexpr, dilation_w: tl.constexpr, TURNED: tl.constexpr,
    TILE_M: tl.constexpr, TILE_N: tl.constexpr, TILE_K: tl.constexpr, GROUP_M: tl.constexpr,
):  # fmt: skip
    """Columns are channels, a strip is TILE_K pixels of a row."""
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
    start = y + pixel_at(n, od, oh, ow, Do, Ho, Wo)[:, None] * C + col[None, :]
    for p in tl.static_range(TILE_K):
        mask = ((strip < strips) & (ow + p < Wo))[:, None] & (col < C)[None, :]
        tl.store(start + p * C, acc[p].to(y.dtype.element_ty), mask=mask)


def alignment(problem: GroupedConvProblem) -> Hashable:
    """Problems of equal channels' alignment, and equal in this, share the walk's programs."""
    return tuple(constants_of(problem).values()) if problem.C == problem.K == problem.G else None


def programs(kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str) -> tuple[Program, ...]:
    """See :class:`tilewise.kernels.triton.conv_walks.Walk`."""
    constants = constants_of(problem) | {"TURNED": variant == "bwd_data"}
    return programs_of(conv_strip, dict.fromkeys(("x", "w", "y")), kernel, problem, dtype, problem.C, 0, constants)


def launches(
    kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, *tensors: Any
) -> tuple[Launch, ...]:
    """See :class:`tilewise.kernels.triton.conv_walks.Walk`."""
    sizes = sizes_of(problem)
    if variant == "bwd_data":
        sizes |= {f"{axis}{a}": sizes[f"{axis}{b}"] for axis in "DHW" for a, b in ("io", "oi")}  # what is read, written
    sizes["strips"] = sizes["N"] * sizes["Do"] * sizes["Ho"] * triton.cdiv(sizes["Wo"], kernel.tile_k)
    tiles = triton.cdiv(sizes["strips"], kernel.tile_m // kernel.tile_k) * triton.cdiv(problem.C, kernel.tile_n)
    return launches_of(programs(kernel, problem, variant, dtype), (tiles, 1, 1), tensors, sizes, 0)


def constants_of(problem: GroupedConvProblem) -> dict[str, Any]:
    """What a strip's code is written out for."""
    return {"X": problem.X, "stride_w": problem.stride_w, "dilation_w": problem.dilation_w}

"""What the three convolution families share: pixel coordinates, their arguments' values, programs and launches."""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import triton
import triton.language as tl

from tilewise.kernels.kernel import Kernel
from tilewise.kernels.triton.program import TRITON_TYPES, VECTOR, Launch, Program, descriptor
from tilewise.kernels.triton.tiles import divisible, sum_launch, sum_program
from tilewise.ops import GroupedConvProblem

_CHANNELS = ("C", "K", "Cg", "Kg")
_CONSTANTS = ("TILE_M", "TILE_N", "TILE_K", "GROUP_M", "SPLIT_K", "NUM_STAGES")


@triton.jit
def pixels(row, D, H, W):
    """Pixel index -> (n, d, h, w)."""
    w = row % W
    rest = row // W
    h = rest % H
    rest = rest // H
    return rest // D, rest % D, h, w


@triton.jit
def pixel_at(n, d, h, w, D, H, W):
    """The inverse of :func:`pixels`."""
    return ((n * D + d) * H + h) * W + w


@triton.jit
def within(mask, d, h, w, D, H, W):
    """Where `mask` holds and (d, h, w) lies inside the image, not in its padding."""
    return mask & (d >= 0) & (d < D) & (h >= 0) & (h < H) & (w >= 0) & (w < W)


@triton.jit
def reach_of(tap, Y, X, dilation_d, dilation_h, dilation_w):
    """How far a filter tap reaches along each axis, in input pixels."""
    return tap // (Y * X) * dilation_d, tap // X % Y * dilation_h, tap % X * dilation_w


@triton.jit
def store_pixels(acc, y, partial, pixel, col, inside, pixels, C, Cg, g, split, SPLIT_K: tl.constexpr):
    """Write a tile of `pixel` x channel `col` of group `g`, or this program's share of it into the workspace.

    `C` are all channels of an image, `Cg` those of a group, `pixels` are all pixels.
    """
    mask = inside[:, None] & (col < Cg)[None, :]
    offset = pixel[:, None] * C + (g * Cg + col)[None, :]
    if SPLIT_K == 1:
        tl.store(y + offset, acc.to(y.dtype.element_ty), mask=mask)
    else:
        tl.store(partial + split.to(tl.int64) * pixels * C + offset, acc, mask=mask)


@triton.jit
def store_filter(acc, dw, partial, k, at, inside, K, depth, Kg, g, split, SPLIT_K: tl.constexpr):
    """Write a tile of filters `k` of group `g`, or this program's share of it into the workspace.

    `at` is the place in a filter of `depth` elements, `K` are all filters, `Kg` those of a group.
    """
    mask = (k < Kg)[:, None] & inside[None, :]
    offset = (g * Kg + k)[:, None] * depth + at[None, :]
    if SPLIT_K == 1:
        tl.store(dw + offset, acc.to(dw.dtype.element_ty), mask=mask)
    else:
        tl.store(partial + split.to(tl.int64) * K * depth + offset, acc, mask=mask)


@triton.jit
def store_taps(total, dw, partial, tap, col, taps, K, split, SPLIT_K: tl.constexpr):
    """Write tap `tap` of the depthwise filters `col`, of `taps` taps, or this program's share into the workspace."""
    offset = col * taps + tap
    if SPLIT_K == 1:
        tl.store(dw + offset, total.to(dw.dtype.element_ty), mask=col < K)
    else:
        tl.store(partial + split.to(tl.int64) * K * taps + offset, total, mask=col < K)


def sizes_of(problem: GroupedConvProblem) -> dict[str, int]:
    """The dimensions, the output's, and the channels of one group."""
    return {
        **problem.to_dict(),
        **problem.output_sizes._asdict(),
        "Cg": problem.C // problem.G,
        "Kg": problem.K // problem.G,
    }


def output_sizes_of(problem: GroupedConvProblem) -> dict[str, int]:
    """:func:`sizes_of`, and as `rows` the pixels of the output: what forward and the filter's gradient walk."""
    out = problem.output_sizes
    return {**sizes_of(problem), "rows": problem.N * out.Do * out.Ho * out.Wo}


def programs_of(
    function: Any, tensors: Mapping[str, tuple[int, ...] | None], kernel: Kernel, problem: GroupedConvProblem,
    dtype: str, contiguous: int, reduce_block: int, constants: Mapping[str, Any] | None = None,
) -> tuple[Program, ...]:  # fmt: skip
    """The programs of one walk, in order.

    Args:
        function: the walk's function; its arguments are `tensors` and perhaps ``partial``, then sizes, then constants.
        tensors: the operands and the result; of those that are passed as descriptors, what a load brings.
        kernel: the kernel.
        problem: the shape.
        dtype: element type of all three tensors.
        contiguous: how many results lie side by side, for the sum of the shares of K.
        reduce_block: results that a program of that sum takes.
        constants: of the function, beside those that are settings of the kernel.
    """
    kind = TRITON_TYPES[dtype]
    element = {n: descriptor(kind, block) if block else kind for n, block in tensors.items()} | {"partial": "fp32"}
    names = function.arg_names
    settings = {n: getattr(kernel, n.lower()) for n in names if n in _CONSTANTS} | dict(constants or {})
    sizes = tuple(n for n in names if n not in element and n not in settings)
    main = Program(
        function,
        tuple((n, element[n]) for n in names if n in element),
        sizes,
        tuple((n, settings[n]) for n in names if n in settings),
        _aligned_channels(problem) & frozenset(sizes),
        kernel.num_warps,
        kernel.num_stages,
    )
    if kernel.split_k == 1:
        return (main,)
    return (main, sum_program(kernel, dtype, divisible(contiguous), reduce_block))


def launches_of(
    programs: tuple[Program, ...], grid: tuple[int, int, int], tensors: tuple[Any, ...], sizes: Mapping[str, int],
    results: int,
) -> tuple[Launch, ...]:  # fmt: skip
    """The launches of :func:`programs_of`.

    Args:
        programs: the programs.
        grid: of the walk.
        tensors: operands, result and workspace, in this order.
        sizes: the size arguments by name, and perhaps more.
        results: elements of the result.
    """
    main, *rest = programs
    first = Launch(main, grid, tensors[: len(main.pointers)], [sizes[n] for n in main.sizes])
    *_, result, workspace = tensors
    return (first, *(sum_launch(program, results, workspace, result) for program in rest))


def _aligned_channels(problem: GroupedConvProblem) -> frozenset[str]:
    """The channel counts that allow the widest loads."""
    sizes = sizes_of(problem)
    return frozenset(n for n in _CHANNELS if sizes[n] % VECTOR == 0)


def alignment(problem: GroupedConvProblem, dtype: str) -> Hashable:
    """Problems of equal alignment share the programs of the walks without boxes, whatever the kernel."""
    return _aligned_channels(problem)

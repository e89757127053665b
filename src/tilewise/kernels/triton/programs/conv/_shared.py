"""Code that the convolution pipelines share: pixel coordinates, values of size arguments, programs and launches."""

# Triton reads argument names as they stand in the problem's columns, upper case included.

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd
from typing import TYPE_CHECKING, Any

import triton
import triton.language as tl

from tilewise.kernels._epilogue import EMPTY_KIND, NO_EPILOGUE, Epilogue, EpilogueKind
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton.programs._epilogue import epilogue_pointers, epilogue_tensors
from tilewise.kernels.triton.programs._program import TRITON_TYPES, VECTOR, Launch, Program, descriptor
from tilewise.kernels.triton.programs._tiles import divisible, sum_launch, sum_program
from tilewise.ops import GroupedConvProblem

if TYPE_CHECKING:
    from torch import Tensor
    from triton.tools.tensor_descriptor import TensorDescriptor

IMAGE_BLOCK = 1024  # results that a program of the sum over split-K shares takes, for images
FILTER_BLOCK = 256  # ... and for filters, which are small: more programs, each of which sums many shares

_CHANNELS = ("C", "K", "Cg", "Kg")
_CONSTANTS = ("TILE_M", "TILE_N", "TILE_K", "GROUP_M", "SPLIT_K", "NUM_STAGES")


@triton.jit
def pixels(row, D, H, W):
    """Return (n, d, h, w) of a pixel index."""
    w = row % W
    rest = row // W
    h = rest % H
    rest = rest // H
    return rest // D, rest % D, h, w


@triton.jit
def pixel_at(n, d, h, w, D, H, W):
    """Return a pixel index: the inverse of :func:`pixels`."""
    return ((n * D + d) * H + h) * W + w


@triton.jit
def within(mask, d, h, w, D, H, W):
    """Return where `mask` holds and (d, h, w) lies inside the image, not in its padding."""
    return mask & (d >= 0) & (d < D) & (h >= 0) & (h < H) & (w >= 0) & (w < W)


@triton.jit
def reach_of(tap, Y, X, dilation_d, dilation_h, dilation_w):
    """Return the reach of a filter tap along each axis, in input pixels."""
    return tap // (Y * X) * dilation_d, tap // X % Y * dilation_h, tap % X * dilation_w


@triton.jit
def store_pixels(acc, y, partial, pixel, col, inside, pixels, C, Cg, g, split, SPLIT_K: tl.constexpr):
    """Write a tile of `pixel` x channel `col` of group `g`, or write this program's share into the workspace.

    `C` is the number of channels of an image, `Cg` of a group, `pixels` the number of pixels.
    """
    mask = inside[:, None] & (col < Cg)[None, :]
    offset = pixel[:, None] * C + (g * Cg + col)[None, :]
    if SPLIT_K == 1:
        tl.store(y + offset, acc.to(y.dtype.element_ty), mask=mask)
    else:
        tl.store(partial + split.to(tl.int64) * pixels * C + offset, acc, mask=mask)


@triton.jit
def store_filter(acc, dw, partial, k, at, inside, K, elements, Kg, g, split, SPLIT_K: tl.constexpr):
    """Write a tile of filters `k` of group `g`, or write this program's share into the workspace.

    `at` is the place in a filter of `elements`, `K` the number of filters, `Kg` of a group.
    """
    mask = (k < Kg)[:, None] & inside[None, :]
    offset = (g * Kg + k)[:, None] * elements + at[None, :]
    if SPLIT_K == 1:
        tl.store(dw + offset, acc.to(dw.dtype.element_ty), mask=mask)
    else:
        tl.store(partial + split.to(tl.int64) * K * elements + offset, acc, mask=mask)


@triton.jit
def store_taps(total, dw, partial, tap, col, taps, K, split, SPLIT_K: tl.constexpr):
    """Write tap `tap` of the depthwise filters `col` with `taps` taps, or this program's share into the workspace."""
    offset = col * taps + tap
    if SPLIT_K == 1:
        tl.store(dw + offset, total.to(dw.dtype.element_ty), mask=col < K)
    else:
        tl.store(partial + split.to(tl.int64) * K * taps + offset, total, mask=col < K)


def sizes_of(problem: GroupedConvProblem) -> dict[str, int]:
    """Return size arguments by name: the dimensions, those of the output, and the channels of one group."""
    return {
        **problem.to_dict(),
        **problem.output_sizes._asdict(),
        "Cg": problem.C // problem.G,
        "Kg": problem.K // problem.G,
    }


def output_sizes_of(problem: GroupedConvProblem) -> dict[str, int]:
    """Return :func:`sizes_of`, and as `rows` the pixels of the output."""
    out = problem.output_sizes
    return {**sizes_of(problem), "rows": problem.N * out.Do * out.Ho * out.Wo}


@dataclass(frozen=True)
class Function:
    """A Triton function with the facts that its programs depend on.

    Attributes:
        fn: its arguments are `tensors` and perhaps ``partial``, then sizes, then constants.
        tensors: the operands and the result by argument; the block of a load where one is a tensor descriptor.
        contiguous: neighbouring results, which decide the alignment of the sum over split-K shares.
        reduce_block: results that a program of that sum takes.
        constants: of the function, besides the settings of the kernel.
    """

    fn: Any
    tensors: Mapping[str, tuple[int, ...] | None]
    contiguous: int
    reduce_block: int
    constants: Mapping[str, int] = field(default_factory=dict)


def programs_of(
    function: Function, kernel: Kernel, problem: GroupedConvProblem, dtype: str, kind: EpilogueKind = EMPTY_KIND
) -> tuple[Program, ...]:
    """Return the programs that a kernel runs for a problem, in order.

    Args:
        function: the function of the kernel's pipeline.
        kernel: the kernel.
        problem: the problem.
        dtype: element type of all three tensors.
        kind: of the epilogue; with split-K the sum over the shares computes it.
    """
    fused = kind if kernel.split_k == 1 else EMPTY_KIND
    stored, names = TRITON_TYPES[dtype], function.fn.arg_names
    element = {n: descriptor(stored, block) if block else stored for n, block in function.tensors.items()}
    element |= {"partial": "fp32", **dict(epilogue_pointers(fused, dtype))}
    settings = {n: getattr(kernel, n.lower()) for n in names if n in _CONSTANTS} | dict(function.constants)
    settings["ACTIVATION"] = fused.activation
    sizes = tuple(n for n in names if n not in element and n not in settings)
    main = Program(
        function.fn,
        tuple((n, element[n]) for n in names if n in element),
        sizes,
        tuple((n, settings[n]) for n in names if n in settings),
        frozenset((n, divisor) for n, divisor in channel_divisors(problem) if n in sizes),
        kernel.num_warps,
        kernel.num_stages,
    )
    if kernel.split_k == 1:
        return (main,)
    return (main, sum_program(kernel, dtype, divisible(function.contiguous), function.reduce_block, kind))


def launches_of(
    programs: tuple[Program, ...],
    grid: tuple[int, int, int],
    tensors: tuple[Tensor | TensorDescriptor, ...],
    sizes: Mapping[str, int],
    results: int,
    epilogue: Epilogue = NO_EPILOGUE,
) -> tuple[Launch, ...]:
    """Return the launches of :func:`programs_of`.

    Args:
        programs: the programs.
        grid: of the first program.
        tensors: operands, result and workspace, in this order.
        sizes: at least the size arguments, by name.
        results: elements of the result.
        epilogue: of the result, whose last axis has K elements.
    """
    main, *rest = programs
    ends = epilogue_tensors(main, epilogue)
    first = Launch(
        main, grid, (*tensors[: len(main.pointers) - len(ends)], *ends), [sizes[n] for n in main.sizes]
    )  # fmt: skip
    *_, result, workspace = tensors
    sums = (sum_launch(program, results, sizes["K"], (workspace, result), epilogue) for program in rest)
    return (first, *sums)


def channel_divisors(problem: GroupedConvProblem, variant: str = "", dtype: str = "") -> frozenset[tuple[str, int]]:
    """Return what divides channel counts, up to the widest load: problems of equal divisors share pointer programs.

    Of 4 or 2 elements, loads still go to shared memory ahead of their use; a single one of 16 bits does not.
    """
    sizes = sizes_of(problem)
    return frozenset((n, divisor) for n in _CHANNELS if (divisor := gcd(sizes[n], VECTOR)) > 1)

"""The launches of a convolution's pointer pipelines, by variant; each takes the pipeline's Triton function.

- forward: rows are output pixels, columns the output channels of one group, and K runs over taps x input channels.
- bwd_data (gradient for the input): rows are input pixels, columns the input channels of one group, and K runs over
  taps x output channels. With a stride, each residue class of input pixels is a product of its own; see ``_residues``.
- bwd_weight (gradient for the filter): rows are the output channels of one group, columns its (tap, input channel)
  pairs, and K runs over output pixels: long where the result is small, so most problems need ``split_k``.

Operands are images (N, D, H, W, channels) and filters (K, Z, Y, X, C / G), contiguous.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import triton

from tilewise.kernels._epilogue import EMPTY_KIND, NO_EPILOGUE, Epilogue, EpilogueKind
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._pipeline import Implementation
from tilewise.kernels.triton.programs._program import Launch, Program
from tilewise.kernels.triton.programs.conv._residues import class_sizes_of
from tilewise.kernels.triton.programs.conv._shared import (
    FILTER_BLOCK,
    IMAGE_BLOCK,
    Function,
    channel_divisors,
    launches_of,
    output_sizes_of,
    programs_of,
)
from tilewise.ops import GroupedConvProblem, input_elements, output_elements, weight_elements

if TYPE_CHECKING:
    from torch import Tensor

Grid = tuple[int, int, int]


def forward(function: Any, *, direct: bool = False) -> Implementation:
    """Return the launches of a forward function; `direct`: its columns are the channels of all groups."""

    def programs(
        kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, kind: EpilogueKind = EMPTY_KIND
    ) -> tuple[Program, ...]:
        tensors = dict.fromkeys(("x", "w", "y"))
        return programs_of(Function(function, tensors, problem.K, IMAGE_BLOCK), kernel, problem, dtype, kind)

    def launches(
        kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, *tensors: Tensor,
        epilogue: Epilogue = NO_EPILOGUE,
    ) -> tuple[Launch, ...]:  # fmt: skip
        found, sizes = programs(kernel, problem, variant, dtype, epilogue.kind), output_sizes_of(problem)
        tiles = triton.cdiv(sizes["rows"], kernel.tile_m)
        tiles *= triton.cdiv(sizes["K"] if direct else sizes["Kg"], kernel.tile_n)
        grid = (tiles, 1 if direct else problem.G, kernel.split_k)
        return launches_of(found, grid, tensors, sizes, output_elements(problem), epilogue)

    return Implementation(programs, launches, channel_divisors)


def bwd_data(function: Any, *, direct: bool = False) -> Implementation:
    """Return the launches of a bwd_data function; `direct`: its columns are the channels of all groups."""

    def programs(kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str) -> tuple[Program, ...]:
        tensors = dict.fromkeys(("dy", "w", "dx"))
        return programs_of(Function(function, tensors, problem.C, IMAGE_BLOCK), kernel, problem, dtype)

    def launches(
        kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, *tensors: Tensor
    ) -> tuple[Launch, ...]:
        sizes = class_sizes_of(problem)
        tiles = triton.cdiv(sizes["rows"], kernel.tile_m)
        tiles *= triton.cdiv(sizes["C"] if direct else sizes["Cg"], kernel.tile_n)
        classes = problem.stride_d * problem.stride_h * problem.stride_w
        grid = (tiles, 1 if direct else problem.G, classes * kernel.split_k)
        return launches_of(programs(kernel, problem, variant, dtype), grid, tensors, sizes, input_elements(problem))

    return Implementation(programs, launches, channel_divisors)


def tapwise_grid(kernel: Kernel, problem: GroupedConvProblem) -> Grid:
    """Return a grid of bwd_weight whose tiles of columns lie within one filter tap."""
    taps, cg, kg = problem.Z * problem.Y * problem.X, problem.C // problem.G, problem.K // problem.G
    tiles = triton.cdiv(kg, kernel.tile_m) * taps * triton.cdiv(cg, kernel.tile_n)
    return (tiles, problem.G, kernel.split_k)


def bwd_weight(function: Any, grid: Callable[[Kernel, GroupedConvProblem], Grid] = tapwise_grid) -> Implementation:
    """Return the launches of a bwd_weight function with this grid."""

    def programs(kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str) -> tuple[Program, ...]:
        tensors = dict.fromkeys(("dy", "x", "dw"))
        filters = Function(function, tensors, problem.C // problem.G, FILTER_BLOCK)
        return programs_of(filters, kernel, problem, dtype)

    def launches(
        kernel: Kernel, problem: GroupedConvProblem, variant: str, dtype: str, *tensors: Tensor
    ) -> tuple[Launch, ...]:
        found, sizes = programs(kernel, problem, variant, dtype), output_sizes_of(problem)
        return launches_of(found, grid(kernel, problem), tensors, sizes, weight_elements(problem))

    return Implementation(programs, launches, channel_divisors)

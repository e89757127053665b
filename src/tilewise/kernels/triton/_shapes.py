"""Facts about problems and kernels that several pipelines' rules and features share; ints, or int64 arrays."""

from __future__ import annotations

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.kernels._formulas import Array, KernelLike, ProblemLike
from tilewise.kernels.triton._limits import RESULT_ELEMENTS

LOAD_WIDTHS = 4  # loads of 1, 2, 4 or 8 elements
TAP_SIDE = 3  # of the square of filter taps that a tile of the pipeline ``slide`` computes
HALF_TILE = 128 * 128  # most results that four warps keep in registers


def turns_of(kernel: KernelLike) -> int:
    """Return the sets of warps of a kernel of the pipeline ``relay`` that take turns, each at a tile of its own."""
    return 2 if kernel.tile_m * kernel.tile_n <= HALF_TILE else 1


def accumulators_per_thread(kernel: KernelLike, arch: HardwareProfile) -> Array:
    """Return the 32-bit partial sums that a thread holds.

    `kernel` is a :class:`Kernel`, or a namespace of its columns as arrays.
    """
    return kernel.tile_m * kernel.tile_n // (kernel.num_warps * arch.warp_size)


def reaches(problem: ProblemLike) -> Array:
    """Return whether a convolution's filter meets pixels besides its own: several taps, or padding."""
    taps, padding = problem.Z * problem.Y * problem.X, problem.pad_d | problem.pad_h | problem.pad_w
    return (taps > 1) | (padding > 0)


def multiplies_channels(problem: ProblemLike) -> Array:
    """Return whether a group of a convolution has more than one input or one output channel."""
    return (problem.C != problem.G) | (problem.K != problem.G)


def residue_classes(problem: ProblemLike) -> Array:
    """Return the classes of input pixels by residue modulo the stride: in bwd_data each is a product of its own."""
    return problem.stride_d * problem.stride_h * problem.stride_w


def class_taps(problem: ProblemLike) -> Array:
    """Return the most filter taps that reach one residue class."""
    p, taps = problem, 1
    axes = ((p.Z, p.stride_d, p.dilation_d), (p.Y, p.stride_h, p.dilation_h), (p.X, p.stride_w, p.dilation_w))
    for size, stride, dilation in axes:
        taps = taps * -(-size // (stride // np.gcd(stride, dilation)))
    return taps


def tap_tiles(p: ProblemLike) -> Array:
    """Return the squares of :data:`TAP_SIDE` taps that cover a convolution's filter."""
    return p.Z * -(-p.Y // TAP_SIDE) * -(-p.X // TAP_SIDE)


def load_widths(*sizes: Array) -> Array:
    """Return one number for the widest loads that the sizes divide by, each 1, 2, 4 or 8 elements."""
    number: Array = 0
    for size in sizes:
        elements = np.gcd(size, RESULT_ELEMENTS)
        number = number * LOAD_WIDTHS + elements // 2 - elements // 8
    return number


def merged_groups(kernel: KernelLike, problem: ProblemLike, variant: str) -> Array:
    """Return the groups that a tile of merged groups computes: 0 where its columns or rows hold not one.

    It is a multiple of the groups whose channels begin at multiples of the widest load, if so many fit.
    """
    inputs, outputs = problem.C // problem.G, problem.K // problem.G
    most = kernel.tile_n // (outputs if variant == "forward" else inputs)
    if variant == "bwd_weight":
        most = kernel.tile_m // outputs
    whole = kernel.tile_n // np.maximum(inputs, outputs)  # of the square tiles of ``slide``
    most = np.minimum(np.where(kernel.pipeline == "slide", whole, most), problem.G)
    unit = RESULT_ELEMENTS // np.gcd(np.gcd(inputs, outputs), RESULT_ELEMENTS)
    return np.where(most >= unit, most // unit * unit, most)

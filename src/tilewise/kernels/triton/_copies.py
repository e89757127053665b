"""Copies of operands with padded channels: descriptors load rows of whole 16 bytes only.

A launch makes them in its workspace, behind the shares of split-K. Sizes are ints, or int64 arrays.
"""

from __future__ import annotations

import numpy as np

from tilewise.kernels._formulas import Array, ProblemLike
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._limits import DESCRIPTOR_BYTES, PARTIAL_BYTES, RESULT_ELEMENTS
from tilewise.ops import output_sizes


def padded_channels(channels: Array) -> Array:
    """Return the channels of a copy."""
    return -(-channels // RESULT_ELEMENTS) * RESULT_ELEMENTS


def operand_rows(p: ProblemLike, variant: str) -> tuple[tuple[Array, Array], tuple[Array, Array]]:
    """Return (rows, channels) of both operands of a convolution without groups: pixels, or filters' taps."""
    out = output_sizes(p)
    x, w = (p.N * p.Di * p.Hi * p.Wi, p.C), (p.K * p.Z * p.Y * p.X, p.C)
    dy = (p.N * out.Do * out.Ho * out.Wo, p.K)
    return {"forward": (x, w), "bwd_data": (dy, w), "bwd_weight": (dy, x)}[variant]


def copied_elements(p: ProblemLike, variant: str) -> tuple[Array, Array]:
    """Return the elements of the copies of both operands; 0 for one whose rows descriptors load as they are."""
    first, second = (
        np.where(channels % RESULT_ELEMENTS == 0, 0, rows * padded_channels(channels))
        for rows, channels in operand_rows(p, variant)
    )
    return first, second


def share_elements(kernel: Kernel, results: int) -> int:
    """Return the partial sums in the workspace of a launch of so many results, padded so that copies may follow."""
    each = DESCRIPTOR_BYTES // PARTIAL_BYTES
    return -(-kernel.split_k * results // each) * each if kernel.split_k > 1 else 0

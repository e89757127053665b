"""Residue classes of the input's gradient: the same taps reach all pixels of equal residue modulo the stride.

Input pixels fall into ``stride_d * stride_h * stride_w`` classes. Each is a matrix product over just its taps,
whose rows step through the output by one.
"""

from __future__ import annotations

from math import gcd

import triton
import triton.language as tl

from tilewise.kernels.triton.programs.conv._shared import sizes_of
from tilewise.ops import GroupedConvProblem

_AXES = ("d", "h", "w")
_QUOTIENTS = ("Dq", "Hq", "Wq")


@triton.jit
def taps_of(residue, filter_size, stride, pad, dilation, every, common, inverse):
    """Return the taps that reach a residue class along one axis: first tap, count, its output offset, and the leap.

    They solve ``tap * dilation = residue + pad`` modulo the stride and lie `every` apart: `common` is the greatest
    common divisor of dilation and stride, `every` is stride / common, and `inverse` that of dilation / common modulo
    `every`. Each next tap reads dilation / common output pixels earlier, which is the leap.
    """
    shift = residue + pad
    first = (shift // common * inverse) % every
    count = tl.where((shift % common == 0) & (first < filter_size), (filter_size - first + every - 1) // every, 0)
    return first, count, (shift - first * dilation) // stride, dilation // common


@triton.jit
def residues_of(residue, stride_h, stride_w):
    """Return the residue of a class along each axis."""
    return residue // stride_w // stride_h, residue // stride_w % stride_h, residue % stride_w


def class_sizes_of(problem: GroupedConvProblem) -> dict[str, int]:
    """Return size arguments by name: `rows` are the pixels of one residue class, ``Dq x Hq x Wq`` per image."""
    sizes = sizes_of(problem)
    for axis, quotient, size in zip(_AXES, _QUOTIENTS, ("Di", "Hi", "Wi"), strict=True):
        stride, dilation = sizes[f"stride_{axis}"], sizes[f"dilation_{axis}"]
        common = gcd(stride, dilation)
        every = stride // common
        sizes[quotient] = triton.cdiv(sizes[size], stride)
        sizes |= {f"every_{axis}": every, f"common_{axis}": common}
        sizes[f"inverse_{axis}"] = pow(dilation // common, -1, every)
    sizes["rows"] = problem.N * sizes["Dq"] * sizes["Hq"] * sizes["Wq"]
    return sizes

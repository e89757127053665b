"""Patches of the input's pixels, the rows of the pipeline ``patch``; ints, or int64 arrays."""

from __future__ import annotations

import numpy as np

from tilewise.kernels._formulas import Array, ProblemLike
from tilewise.kernels.triton._limits import MIN_DOT
from tilewise.kernels.triton._shapes import residue_classes


def strides_across(problem: ProblemLike) -> Array:
    """Return the strides that a patch is wide: as many as fill the narrowest tile. It is one stride high and deep."""
    return np.maximum(1, MIN_DOT // (residue_classes(problem) * problem.C))


def patch_columns(problem: ProblemLike) -> Array:
    """Return the pixels of a patch x channels."""
    return residue_classes(problem) * strides_across(problem) * problem.C


def patches(problem: ProblemLike) -> Array:
    """Return the patches that cover the images."""
    p = problem
    wide = -(-p.Wi // (p.stride_w * strides_across(p)))
    return p.N * -(-p.Di // p.stride_d) * -(-p.Hi // p.stride_h) * wide


def window_pixels(problem: ProblemLike) -> Array:
    """Return the output pixels that reach a patch."""
    p = problem
    high = _window(p.Y, p.stride_h, p.pad_h, p.dilation_h, 1)
    wide = _window(p.X, p.stride_w, p.pad_w, p.dilation_w, strides_across(p))
    return _window(p.Z, p.stride_d, p.pad_d, p.dilation_d, 1) * high * wide


def _window(taps: Array, stride: Array, pad: Array, dilation: Array, strides: Array) -> Array:
    """Return the output pixels along an axis that reach a patch of so many strides, with no negative number between.

    Output pixel o reaches pixel ``o * stride + tap * dilation - pad``.
    """
    reach = (taps - 1) * dilation
    before = reach // stride + 1  # at least as many output pixels lie before the patch's own
    first = -(-(pad + before * stride - reach) // stride)
    return (stride * strides - 1 + pad) // stride + before - first + 1

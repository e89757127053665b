"""The pipeline ``strip``: as ``lanes``, but a thread keeps `tile_k` neighbouring pixels of a row, a strip.

A filter row is loaded once for all pixels of a strip; `tile_m` pixels are ``tile_m / tile_k`` strips. In bwd_weight a
program follows whole rows of pixels, and computes the taps of one filter row.
"""

from __future__ import annotations

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.kernels._contract import Rules
from tilewise.kernels._formulas import Array, FeatureInputs, Formulas, KernelLike, ProblemLike
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._pipeline import CONV_VARIANTS, FORWARD, Pipeline
from tilewise.kernels.triton._shapes import accumulators_per_thread, multiplies_channels, residue_classes
from tilewise.ops import Target, output_sizes

MAX_STRIP = 8  # pixels
MAX_FILTER = 11  # width of a filter that a strip unrolls: beyond, there is much code and no register left ...
MAX_COLUMNS = 32  # ... nor beyond this reach along the image


def strip_columns(kernel: KernelLike, problem: ProblemLike) -> Array:
    """Return the columns of the image that a strip's pixels reach in a filter row; ints, or arrays."""
    return (kernel.tile_k - 1) * problem.stride_w + (problem.X - 1) * problem.dilation_w + 1


def _illegal(kernel: Kernel, target: Target, arch: HardwareProfile) -> str | None:
    most = min(MAX_STRIP, kernel.tile_m, accumulators_per_thread(kernel, arch))
    if not 1 < kernel.tile_k <= most:
        return f"strip takes a tile_k of 2 to {MAX_STRIP}, tile_m and the accumulators a thread, here {most}"
    if kernel.num_stages != 1:  # a filter row's loads are all that registers hold
        return "strip takes num_stages 1"
    return None


def _limits(kernel: KernelLike, problem: ProblemLike, variant: str) -> Rules:
    strip = kernel.pipeline == "strip"
    yield strip & multiplies_channels(problem), "strip needs one input and one output channel a group"
    strided = residue_classes(problem) > 1
    yield strip & (variant == "bwd_data") & strided, "strip needs a stride of 1 in bwd_data"
    yield strip & (problem.X > MAX_FILTER), f"strip takes filters at most {MAX_FILTER} wide"
    wide = strip_columns(kernel, problem) > MAX_COLUMNS
    yield strip & wide, f"a strip takes at most {MAX_COLUMNS} columns of the image"


def _padded_k(kernel: KernelLike, problem: ProblemLike, variant: str, k: Array) -> Array:
    if variant != "bwd_weight":
        return k
    return np.where(kernel.pipeline == "strip", k // output_sizes(problem).Wo * kernel.tile_k, k)


def _reuse(i: FeatureInputs, reuse: Array) -> Array:
    """Replace the reuse: a strip loads each column of the image once for all taps of a filter row."""
    here = i.k.pipeline == "strip"
    if not here.any():
        return reuse
    most = i.k.tile_k * i.p.X
    return np.where(here, most / np.minimum(strip_columns(i.k, i.p), most), 1.0 * reuse)


def _tiles_m(i: FeatureInputs, tiles: Array) -> Array:
    """Replace the tiles along M: each row of pixels is padded to whole strips."""
    here = i.k.pipeline == "strip"
    if i.variant == "bwd_weight" or not here.any():
        return tiles
    row = i.out.Wo if i.variant == "forward" else i.p.Wi
    pixels = i.gemm.m // row * -(-row // i.k.tile_k) * i.k.tile_k
    return np.where(here, -(-pixels // i.k.tile_m), tiles)


def _pixel_steps(i: FeatureInputs, steps: Array) -> Array:
    """Replace the steps along the pixels: rows of strips, each for the taps of a filter row."""
    here = i.k.pipeline == "strip"
    if not here.any():
        return steps
    strips = -(-(i.gemm.k // i.out.Wo * i.k.tile_k) // i.k.tile_m)
    strips = strips * -(-i.out.Wo // i.k.tile_k)
    return np.where(here, strips * i.p.X, steps)


STRIP = Pipeline(
    name="strip",
    number=20,
    variants=CONV_VARIANTS,
    programs="tilewise.kernels.triton.programs.conv.depthwise._strip",
    fuses=FORWARD,
    matrix_units=False,
    illegal=_illegal,
    limits={"grouped_conv": _limits},
    padded_k=_padded_k,
    filter_rows=True,
    formulas=Formulas("strip", tiles_m=_tiles_m, reuse=_reuse, pixel_steps=_pixel_steps),
)

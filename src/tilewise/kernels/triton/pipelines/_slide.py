"""The pipeline ``slide``: a tile of merged groups slides down the images, row by row of pixels.

A row is 64 pixels, of one image or of several. The rows of the input that meet it under the filter's taps stay in
shared memory while the tile slides, so each row of the input is loaded once for each column of taps. A warp loads, a
few rows ahead (`num_stages`), for `num_warps` others that multiply. In bwd_weight a tile has three by three taps, and
three such sets of warps, one for each column. Triton's interpreter has no Gluon, in which the programs are written:
tests compile them, and run them on a GPU.
"""

from __future__ import annotations

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.kernels._contract import Rules
from tilewise.kernels._formulas import Array, FeatureInputs, Formulas, KernelLike, ProblemLike
from tilewise.kernels.triton._boxes import ROW_CHANNELS, ROW_PIXELS, fewest_row_steps
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._limits import BARRIER_BYTES, LOADED_ROWS, RESULT_ELEMENTS
from tilewise.kernels.triton._pipeline import CONV_VARIANTS, FORWARD, Pipeline
from tilewise.kernels.triton._shapes import TAP_SIDE, merged_groups, residue_classes, tap_tiles
from tilewise.kernels.triton.pipelines._merged import Merging
from tilewise.ops import Target, operand_bytes

_MERGING = Merging("slide")
_WARPS = 4  # of a warpgroup
_NARROW = 32  # channels of a tile, of which a program computes two


def _illegal(kernel: Kernel, target: Target, arch: HardwareProfile) -> str | None:
    k, weight = kernel, target.variant == "bwd_weight"
    sizes = (ROW_CHANNELS,) if weight else (_NARROW, ROW_CHANNELS)
    if k.tile_m != ROW_PIXELS or k.tile_n != k.tile_k or k.tile_n not in sizes:
        return f"slide takes tiles of {' or '.join(f'{ROW_PIXELS}x{n}x{n}' for n in sizes)}"
    if k.num_warps != _WARPS or k.group_m != 1 or (k.split_k > 1 and not weight):
        return f"slide takes {_WARPS} warps, group_m 1 and, but for bwd_weight, split_k 1"
    rows, beside = TAP_SIDE * (k.num_stages + TAP_SIDE - 1), 0
    if weight:
        rows += k.num_stages
    else:  # the filter, and a row of results in fp32 on its way to the store
        beside = ROW_CHANNELS * (TAP_SIDE**2 * k.tile_n * operand_bytes(target.dtype) + 4 * ROW_PIXELS)
    needed = rows * ROW_PIXELS * ROW_CHANNELS * operand_bytes(target.dtype) + beside + BARRIER_BYTES
    if needed > arch.shared_memory_bytes:
        return f"needs {needed} bytes of shared memory, {arch.name} has {arch.shared_memory_bytes} a block"
    return None


def _needs(kernel: KernelLike, problem: ProblemLike, variant: str) -> Rules:
    p, here = problem, kernel.pipeline == "slide"
    if not np.any(here):
        return
    groups = merged_groups(kernel, problem, variant)
    yield here & ((p.G == 1) | (groups < 1)), "slide needs groups of at most the channels of its tile"
    firsts = np.where(groups < p.G, np.gcd(groups * (p.C // p.G), groups * (p.K // p.G)), 0)
    yield here & (np.gcd(np.gcd(p.C, p.K), firsts) % RESULT_ELEMENTS != 0), LOADED_ROWS
    if variant == "bwd_data":
        yield here & (residue_classes(p) > 1), "slide needs a stride of 1 in bwd_data"
    else:
        yield here & (p.Wi % p.stride_w != 0), "slide needs images whose width the stride divides"
    if variant != "bwd_weight":
        large = (p.Z > 1) | (p.Y > TAP_SIDE) | (p.X > TAP_SIDE)
        yield here & large, f"slide keeps a filter of at most {TAP_SIDE} x {TAP_SIDE} taps"


def _padded_rows(kernel: KernelLike, problem: ProblemLike, variant: str, rows: Array) -> Array:
    here = kernel.pipeline == "slide"
    if variant == "bwd_weight" or not np.any(here):
        return rows
    return np.where(here, fewest_row_steps(problem, variant) * ROW_PIXELS, rows)


def _padded_k(kernel: KernelLike, problem: ProblemLike, variant: str, k: Array) -> Array:
    """Replace the length of K: rows of pixels in bwd_weight, else filter taps x the channels of a tile."""
    here = kernel.pipeline == "slide"
    if not np.any(here):
        return k
    p = problem
    covered = fewest_row_steps(p, variant) if variant == "bwd_weight" else p.Z * p.Y * p.X
    return np.where(here, covered * kernel.tile_k, k)


def _padded_work(kernel: KernelLike, problem: ProblemLike, variant: str, work: Array) -> Array:
    """Replace the work: a product of square tiles for each tap, row of pixels and set of merged groups."""
    p, here = problem, kernel.pipeline == "slide"
    if not np.any(here):
        return work
    products = -(-p.G // np.maximum(merged_groups(kernel, problem, variant), 1))
    tile = 2.0 * kernel.tile_m * kernel.tile_n * kernel.tile_k
    taps = tap_tiles(p) * TAP_SIDE**2 if variant == "bwd_weight" else p.Z * p.Y * p.X
    return np.where(here, tile * products * taps * fewest_row_steps(p, variant), work)


def _steps(i: FeatureInputs, steps: Array) -> Array:
    """Replace the steps along K: rows of pixels in bwd_weight, else filter taps."""
    here = i.k.pipeline == "slide"
    if not here.any():
        return steps
    own = fewest_row_steps(i.p, i.variant) if i.variant == "bwd_weight" else i.taps
    return np.where(here, own, steps)


def _tiles_m(i: FeatureInputs, tiles: Array) -> Array:
    """Replace the tiles along M: rows of pixels."""
    here = i.k.pipeline == "slide"
    if i.variant == "bwd_weight" or not here.any():
        return tiles
    return np.where(here, fewest_row_steps(i.p, i.variant), tiles)


def _tiles_n(i: FeatureInputs, tiles: Array) -> Array:
    """Replace the tiles along N: in bwd_weight, one has a square of taps."""
    here = i.k.pipeline == "slide"
    return np.where(here, tap_tiles(i.p), tiles) if i.variant == "bwd_weight" and here.any() else tiles


SLIDE = Pipeline(
    name="slide",
    number=25,
    variants=CONV_VARIANTS,
    programs="tilewise.kernels.triton.programs.conv.gluon._slide",
    fuses=FORWARD,
    described=True,
    persistent=True,
    illegal=_illegal,
    needs={"grouped_conv": _needs},
    padded_rows=_padded_rows,
    padded_k=_padded_k,
    padded_work=_padded_work,
    formulas=Formulas(
        "slide",
        steps=_steps,
        tiles_m=_tiles_m,
        tiles_n=_tiles_n,
        merged=_MERGING.merged,
        program=_MERGING.program,
    ),
)

"""The pipeline ``patch``: a row of bwd_data is a patch of pixels, whose pixels and channels are the columns.

A patch has a pixel of each residue class modulo the stride, so all classes are one product, which reads the output's
gradient once for all of them; where channels are few it is wider. A step is one of the output pixels that reach a patch
x `tile_k` output channels: pixels of the patch that this one does not reach multiply zeros.
"""

from __future__ import annotations

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.kernels._contract import Rules
from tilewise.kernels._formulas import Array, FeatureInputs, Formulas, KernelLike, ProblemLike
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._limits import MIN_DOT
from tilewise.kernels.triton._patches import patch_columns, patches, window_pixels
from tilewise.kernels.triton._pipeline import Pipeline
from tilewise.kernels.triton._shapes import residue_classes
from tilewise.ops import Target

_MOST_COLUMNS = 64  # wider ones were slower than the other pipelines' in all but one of 14 problems (H200)


def _illegal(kernel: Kernel, target: Target, arch: HardwareProfile) -> str | None:
    if kernel.tile_n > _MOST_COLUMNS:
        return f"patch takes a tile_n of at most {_MOST_COLUMNS}"
    return "patch takes group_m 1 and split_k 1" if kernel.group_m * kernel.split_k != 1 else None


def _needs(kernel: KernelLike, problem: ProblemLike, variant: str) -> Rules:
    p, here = problem, kernel.pipeline == "patch"
    if not np.any(here):
        return
    yield here & (p.G > 1), "patch needs a single group"
    columns = patch_columns(p)
    yield here & (columns < 2 * p.C), "a patch needs two pixels"
    yield here & (kernel.tile_n < columns), "a tile needs the columns of a whole patch"
    yield here & (kernel.tile_n > MIN_DOT) & (kernel.tile_n >= 2 * columns), "half of tile_n would hold a patch"


def _padded_rows(kernel: KernelLike, problem: ProblemLike, variant: str, rows: Array) -> Array:
    here = kernel.pipeline == "patch"
    if not np.any(here):
        return rows
    return np.where(here, -(-patches(problem) // kernel.tile_m) * kernel.tile_m, rows)


def _padded_k(kernel: KernelLike, problem: ProblemLike, variant: str, k: Array) -> Array:
    here = kernel.pipeline == "patch"
    if not np.any(here):
        return k
    return np.where(here, window_pixels(problem) * -(-problem.K // kernel.tile_k) * kernel.tile_k, k)


def _padded_work(kernel: KernelLike, problem: ProblemLike, variant: str, work: Array) -> Array:
    """Replace the work: one product of the rows, a tile of columns and K as padded."""
    here = kernel.pipeline == "patch"
    if not np.any(here):
        return work
    rows, k = _padded_rows(kernel, problem, variant, work), _padded_k(kernel, problem, variant, work)
    return np.where(here, 2.0 * rows * kernel.tile_n * k, work)


def _steps(i: FeatureInputs, steps: Array) -> Array:
    """Replace the steps along K, for as many products as there are residue classes."""
    here = i.k.pipeline == "patch"
    if not here.any():
        return steps
    return np.where(here, residue_classes(i.p) * window_pixels(i.p) * -(-i.p.K // i.k.tile_k), steps)


def _tiles_m(i: FeatureInputs, tiles: Array) -> Array:
    """Replace the tiles along M: of patches."""
    here = i.k.pipeline == "patch"
    if not here.any():
        return tiles
    return np.where(here, -(-patches(i.p) // i.k.tile_m), tiles)


PATCH = Pipeline(
    name="patch",
    number=26,
    variants=(("grouped_conv", "bwd_data"),),
    programs="tilewise.kernels.triton.programs.conv._patch",
    illegal=_illegal,
    needs={"grouped_conv": _needs},
    padded_rows=_padded_rows,
    padded_k=_padded_k,
    padded_work=_padded_work,
    formulas=Formulas("patch", steps=_steps, tiles_m=_tiles_m),
)

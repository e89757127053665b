"""The pipeline ``box``: as ``taps``, but `tile_m` pixels (bwd_weight: `tile_k`) are a box.

A tensor descriptor loads a box at once (see :mod:`tilewise.kernels.triton`). In bwd_weight a `tile_n` of 3/2 of a power
of two stands for columns of three taps, a third each.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.kernels._contract import Rules
from tilewise.kernels._formulas import Array, FeatureInputs, Formulas, KernelLike, ProblemLike
from tilewise.kernels.triton._boxes import BOX_PIXELS, covering_pixels, tap_columns, taps_of_tile
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._limits import LOADED_ROWS, RESULT_ELEMENTS, WARPGROUP_ROWS
from tilewise.kernels.triton._pipeline import CONV_VARIANTS, FORWARD, Pipeline
from tilewise.ops import Target


@dataclass(frozen=True)
class Boxing:
    """The formulas of a pipeline of this name whose `tile_m` pixels (bwd_weight: `tile_k`) are a box."""

    name: str

    def padded_rows(self, kernel: KernelLike, problem: ProblemLike, variant: str, rows: Array) -> Array:
        """Replace the rows: pixels of the boxes that cover the image."""
        here = kernel.pipeline == self.name
        if variant == "bwd_weight" or not np.any(here):
            return rows
        return np.where(here, covering_pixels(problem, variant, kernel.tile_m), rows)

    def tiles_m(self, i: FeatureInputs, tiles: Array) -> Array:
        """Replace the tiles along M: boxes that cover each image, of each residue class."""
        here = i.k.pipeline == self.name
        if i.variant == "bwd_weight" or not here.any():
            return tiles
        pixels = covering_pixels(i.p, i.variant, i.k.tile_m)
        return np.where(here, i.residue_classes * pixels // i.k.tile_m, tiles)

    def padded_k(self, kernel: KernelLike, problem: ProblemLike, variant: str, k: Array) -> Array:
        """Replace the length of K in bwd_weight: pixels of the boxes that cover the output."""
        here = kernel.pipeline == self.name
        if variant != "bwd_weight" or not np.any(here):
            return k
        return np.where(here, covering_pixels(problem, variant, kernel.tile_k), k)

    def steps(self, i: FeatureInputs, steps: Array) -> Array:
        """Replace the steps along K in bwd_weight: boxes that cover the output pixels."""
        here = i.k.pipeline == self.name
        if i.variant != "bwd_weight" or not here.any():
            return steps
        return np.where(here, covering_pixels(i.p, i.variant, i.k.tile_k) // i.k.tile_k, steps)


_BOXING = Boxing("box")


def _illegal(kernel: Kernel, target: Target, arch: HardwareProfile) -> str | None:
    pixels, rows = ("tile_k", "tile_m") if target.variant == "bwd_weight" else ("tile_m", "tile_n")
    sizes = kernel.to_dict()
    if sizes[pixels] in BOX_PIXELS and int(sizes[rows]) >= WARPGROUP_ROWS:
        return None
    allowed = ", ".join(map(str, BOX_PIXELS))
    return f"box takes a {pixels} of {allowed} and a {rows} of at least {WARPGROUP_ROWS}"


def _limits(kernel: KernelLike, problem: ProblemLike, variant: str) -> Rules:
    p, box = problem, kernel.pipeline == "box"
    if not np.any(box):  # most pools would compute these rules for nothing
        return
    inner = {"forward": p.C // p.G, "bwd_data": p.K // p.G, "bwd_weight": 0}[variant]  # channels that are summed over
    # in bwd_weight also where a group begins within a row: an H200 faults at others ("illegal instruction")
    others = {"forward": 0, "bwd_data": p.K, "bwd_weight": p.K // p.G}[variant]
    rows = np.gcd(p.C // p.G, others)
    strided = (variant != "bwd_data") & ((p.stride_d > 1) | (p.stride_h > 1) | (p.stride_w > 1))
    yield box & (rows % RESULT_ELEMENTS != 0), LOADED_ROWS
    # elements beyond are another group's or pixel's: they are multiplied by zero, but may be infinite
    yield box & ((p.G > 1) | strided) & (inner % kernel.tile_k != 0), "tile_k must divide the channels of a box"
    flat = (p.Di == 1) & (p.Z == 1) & (p.pad_d == 0) & (p.stride_d == 1)
    whole = flat & (p.Hi % p.stride_h == 0) & (p.Wi % p.stride_w == 0)
    yield box & strided & np.logical_not(whole), "a strided box needs 2D images that the stride divides"


def _columns(kernel: KernelLike, problem: ProblemLike) -> Array:
    return tap_columns(kernel, problem, taps_of_tile(kernel))


BOX = Pipeline(
    name="box",
    number=18,
    variants=CONV_VARIANTS,
    programs="tilewise.kernels.triton.programs.conv._box",
    fuses=FORWARD,
    described=True,
    k_order="tapwise",
    thirds=("bwd_weight",),
    columns=_columns,
    illegal=_illegal,
    limits={"grouped_conv": _limits},
    padded_rows=_BOXING.padded_rows,
    padded_k=_BOXING.padded_k,
    formulas=Formulas("box", steps=_BOXING.steps, tiles_m=_BOXING.tiles_m),
)

"""The pipeline ``mergedbox``: as ``merged``, but `tile_m` pixels are a box that one tensor descriptor loads."""

from __future__ import annotations

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.kernels._contract import Rules
from tilewise.kernels._formulas import Formulas, KernelLike, ProblemLike
from tilewise.kernels.triton._boxes import BOX_PIXELS
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._limits import LOADED_ROWS, RESULT_ELEMENTS, WARPGROUP_ROWS
from tilewise.kernels.triton._pipeline import FORWARD, PIXEL_VARIANTS, Pipeline
from tilewise.kernels.triton._shapes import merged_groups, residue_classes
from tilewise.kernels.triton.pipelines._box import Boxing
from tilewise.kernels.triton.pipelines._merged import Merging
from tilewise.ops import Target

_BOXING, _MERGING = Boxing("mergedbox"), Merging("mergedbox")


def _illegal(kernel: Kernel, target: Target, arch: HardwareProfile) -> str | None:
    if kernel.group_m != 1:
        return "mergedbox takes group_m 1"
    if kernel.tile_m in BOX_PIXELS and kernel.tile_n >= WARPGROUP_ROWS:
        return None
    allowed = ", ".join(map(str, BOX_PIXELS))
    return f"mergedbox takes a tile_m of {allowed} and a tile_n of at least {WARPGROUP_ROWS}"


def _needs(kernel: KernelLike, problem: ProblemLike, variant: str) -> Rules:
    p, here = problem, kernel.pipeline == "mergedbox"
    if not np.any(here):
        return
    yield from _MERGING.needs(kernel, problem, variant)
    loaded = p.C if variant == "forward" else p.K
    groups = merged_groups(kernel, problem, variant)
    starts = np.where(groups < p.G, groups * (loaded // p.G), 0)
    yield here & (np.gcd(loaded, starts) % RESULT_ELEMENTS != 0), LOADED_ROWS
    flat = (p.Di == 1) & (p.Z == 1) & (p.pad_d == 0) & (p.stride_d == 1)
    whole = flat & (p.Hi % p.stride_h == 0) & (p.Wi % p.stride_w == 0)
    strided = residue_classes(p) > 1
    if variant == "bwd_data":
        yield here & strided, "mergedbox needs a stride of 1 in bwd_data"
    else:
        yield here & strided & np.logical_not(whole), "a strided box needs 2D images that the stride divides"


MERGEDBOX = Pipeline(
    name="mergedbox",
    number=23,
    variants=PIXEL_VARIANTS,
    programs="tilewise.kernels.triton.programs.conv._merged_box",
    fuses=FORWARD,
    described=True,
    illegal=_illegal,
    needs={"grouped_conv": _needs},
    padded_rows=_BOXING.padded_rows,
    padded_k=_MERGING.padded_k,
    padded_work=_MERGING.padded_work,
    formulas=Formulas(
        "mergedbox",
        steps=_MERGING.steps,
        tiles_m=_BOXING.tiles_m,
        merged=_MERGING.merged,
        program=_MERGING.program,
    ),
)

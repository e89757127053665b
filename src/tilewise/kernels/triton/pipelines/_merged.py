"""The pipeline ``merged``: a tile computes several narrow groups at once, with a block-diagonal filter.

A step is one filter tap x `tile_k` channels of the tile's groups; in bwd_weight, `tile_k` pixels.
"""

from __future__ import annotations

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.kernels._contract import Rules
from tilewise.kernels._formulas import Array, FeatureInputs, Formulas, KernelLike, ProblemLike
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._pipeline import CONV_VARIANTS, Pipeline
from tilewise.kernels.triton._shapes import merged_groups
from tilewise.ops import Target, implicit_gemm


def _illegal(kernel: Kernel, target: Target, arch: HardwareProfile) -> str | None:
    return "merged takes group_m 1" if kernel.group_m != 1 else None


def _needs(kernel: KernelLike, problem: ProblemLike, variant: str) -> Rules:
    merged = kernel.pipeline == "merged"
    if not np.any(merged):  # most pools would compute this rule for nothing
        return
    yield merged & (merged_groups(kernel, problem, variant) < 2), "merged needs a tile that holds two groups"


def _padded_k(kernel: KernelLike, problem: ProblemLike, variant: str, k: Array) -> Array:
    merged = kernel.pipeline == "merged"
    if variant == "bwd_weight" or not np.any(merged):
        return k
    inner = (problem.C if variant == "forward" else problem.K) // problem.G
    steps = -(-inner * np.maximum(merged_groups(kernel, problem, variant), 1) // kernel.tile_k)
    return np.where(merged, k // inner * steps * kernel.tile_k, k)


def _padded_work(kernel: KernelLike, problem: ProblemLike, variant: str, work: Array) -> Array:
    """Replace the work: there is a product for each set of merged groups, not for each group."""
    merged = kernel.pipeline == "merged"
    if not np.any(merged):
        return work
    p, groups = problem, np.maximum(merged_groups(kernel, problem, variant), 1)
    products = -(-p.G // groups)
    if variant == "bwd_weight":
        pixels, cols = implicit_gemm(p, variant).k, p.Z * p.Y * p.X * groups * (p.C // p.G)
        padded = (kernel.tile_m, -(-cols // kernel.tile_n) * kernel.tile_n, -(-pixels // kernel.tile_k) * kernel.tile_k)
        return np.where(merged, 2.0 * products * padded[0] * padded[1] * padded[2], work)
    return np.where(merged, work / p.G * products, work)


def _steps(i: FeatureInputs, steps: Array) -> Array:
    """Replace the steps along K: each filter tap pads the channels of the merged groups."""
    here = i.k.pipeline == "merged"
    if i.variant == "bwd_weight" or not here.any():
        return steps
    return np.where(here, i.gemm.k // i.channels * -(-i.together(i.channels) // i.k.tile_k), steps)


def _merged(i: FeatureInputs, merged: Array) -> Array:
    """Replace the groups that a tile computes; the features of an unsupported problem count one."""
    return np.where(i.k.pipeline == "merged", np.maximum(merged_groups(i.k, i.p, i.variant), 1), merged)


MERGED = Pipeline(
    name="merged",
    number=21,
    variants=CONV_VARIANTS,
    programs="tilewise.kernels.triton.programs.conv._merged",
    illegal=_illegal,
    needs={"grouped_conv": _needs},
    padded_k=_padded_k,
    padded_work=_padded_work,
    formulas=Formulas("merged", steps=_steps, merged=_merged),
)

"""The pipeline ``merged``: a tile computes several narrow groups at once, with a block-diagonal filter.

A step is one filter tap x `tile_k` channels of the tile's groups; in bwd_weight, `tile_k` pixels.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.kernels._contract import Rules
from tilewise.kernels._formulas import Array, FeatureInputs, Formulas, KernelLike, ProblemLike
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._pipeline import CONV_VARIANTS, FORWARD, Pipeline
from tilewise.kernels.triton._shapes import load_widths, merged_groups
from tilewise.ops import Target, implicit_gemm


@dataclass(frozen=True)
class Merging:
    """The rules and formulas of a pipeline of this name whose tiles compute several groups."""

    name: str

    def needs(self, kernel: KernelLike, problem: ProblemLike, variant: str) -> Rules:
        """Yield the rule that a tile must hold two groups."""
        here = kernel.pipeline == self.name
        if np.any(here):  # most pools would compute this rule for nothing
            yield (
                here & (merged_groups(kernel, problem, variant) < 2),
                f"{self.name} needs a tile that holds two groups",
            )

    def padded_k(self, kernel: KernelLike, problem: ProblemLike, variant: str, k: Array) -> Array:
        """Replace the length of K: each filter tap pads the channels of the merged groups."""
        here = kernel.pipeline == self.name
        if variant == "bwd_weight" or not np.any(here):
            return k
        inner = (problem.C if variant == "forward" else problem.K) // problem.G
        steps = -(-inner * np.maximum(merged_groups(kernel, problem, variant), 1) // kernel.tile_k)
        return np.where(here, k // inner * steps * kernel.tile_k, k)

    def padded_work(self, kernel: KernelLike, problem: ProblemLike, variant: str, work: Array) -> Array:
        """Replace the work: there is a product for each set of merged groups, not for each group."""
        here = kernel.pipeline == self.name
        if not np.any(here):
            return work
        p, groups = problem, np.maximum(merged_groups(kernel, problem, variant), 1)
        products = -(-p.G // groups)
        if variant == "bwd_weight":
            pixels, cols = implicit_gemm(p, variant).k, p.Z * p.Y * p.X * groups * (p.C // p.G)
            cols, pixels = (-(-size // tile) * tile for size, tile in ((cols, kernel.tile_n), (pixels, kernel.tile_k)))
            return np.where(here, 2.0 * products * kernel.tile_m * cols * pixels, work)
        return np.where(here, work / p.G * products, work)

    def steps(self, i: FeatureInputs, steps: Array) -> Array:
        """Replace the steps along K: each filter tap pads the channels of the merged groups."""
        here = i.k.pipeline == self.name
        if i.variant == "bwd_weight" or not here.any():
            return steps
        return np.where(here, i.gemm.k // i.channels * -(-i.together(i.channels) // i.k.tile_k), steps)

    def merged(self, i: FeatureInputs, merged: Array) -> Array:
        """Replace the groups that a tile computes; the features of an unsupported problem count one."""
        return np.where(i.k.pipeline == self.name, np.maximum(merged_groups(i.k, i.p, i.variant), 1), merged)

    def program(self, i: FeatureInputs, program: Array) -> Array:
        """Replace the number of the program: loads take the channels of the merged groups, or of a group's filter."""
        here = i.k.pipeline == self.name
        if not np.any(here):
            return program
        own = load_widths(i.p.C // i.p.G, i.neighbours(i.p.C), i.neighbours(i.p.K))
        return np.where(here, own, program)


def _illegal(kernel: Kernel, target: Target, arch: HardwareProfile) -> str | None:
    return "merged takes group_m 1" if kernel.group_m != 1 else None


_MERGING = Merging("merged")

MERGED = Pipeline(
    name="merged",
    number=24,
    variants=CONV_VARIANTS,
    programs="tilewise.kernels.triton.programs.conv._merged",
    fuses=FORWARD,
    illegal=_illegal,
    needs={"grouped_conv": _MERGING.needs},
    padded_k=_MERGING.padded_k,
    padded_work=_MERGING.padded_work,
    formulas=Formulas("merged", steps=_MERGING.steps, merged=_MERGING.merged, program=_MERGING.program),
)

"""The pipeline ``depth``: one input channel per group, so the kernel filters channels without a matrix product.

A step is one filter tap of `tile_m` pixels x `tile_n` output channels.
"""

from __future__ import annotations

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.kernels._contract import Rules
from tilewise.kernels._formulas import Array, FeatureInputs, Formulas, KernelLike, ProblemLike
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._pipeline import CONV_VARIANTS, FORWARD, Pipeline
from tilewise.ops import Target

LINE = 64  # channels: 128 bytes, a line of the cache


def takes_one_tap(kernel: Kernel, target: Target, arch: HardwareProfile) -> str | None:
    """Return a reason unless `tile_k` is 1: a step is one filter tap."""
    return f"{kernel.pipeline} takes tile_k 1" if kernel.tile_k != 1 else None


def _needs(kernel: KernelLike, problem: ProblemLike, variant: str) -> Rules:
    yield (kernel.pipeline == "depth") & (problem.C != problem.G), "depth needs one input channel a group"


def _program(i: FeatureInputs, program: Array) -> Array:
    """Return program numbers of gradients with several filters a channel by what divides the channels, up to a line.

    A thread then reads single elements, many pixels apart. At whole lines they take up to 1.6 times as long. Alignments
    below 8 have numbers of their own already, and those above 8 follow that of 8, the last one. Forward does not gain.
    """
    here = i.k.pipeline == "depth"
    if i.variant == "forward" or not np.any(here):
        return program
    beyond = np.gcd(i.p.C, LINE) // 8  # 0, or 1, 2, 4 or 8
    return np.where(here & (i.p.K > i.p.G), program + beyond // 2 - beyond // 8, program)


DEPTH = Pipeline(
    name="depth",
    number=8,
    variants=CONV_VARIANTS,
    programs="tilewise.kernels.triton.programs.conv.depthwise._depth",
    fuses=FORWARD,
    matrix_units=False,
    illegal=takes_one_tap,
    needs={"grouped_conv": _needs},
    formulas=Formulas("depth", program=_program),
)

"""The pipeline ``depth``: one input channel per group, so the kernel filters channels without a matrix product.

A step is one filter tap of `tile_m` pixels x `tile_n` output channels.
"""

from __future__ import annotations

from tilewise.arch import HardwareProfile
from tilewise.kernels._contract import Rules
from tilewise.kernels._formulas import KernelLike, ProblemLike
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._pipeline import CONV_VARIANTS, FORWARD, Pipeline
from tilewise.ops import Target


def takes_one_tap(kernel: Kernel, target: Target, arch: HardwareProfile) -> str | None:
    """Return a reason unless `tile_k` is 1: a step is one filter tap."""
    return f"{kernel.pipeline} takes tile_k 1" if kernel.tile_k != 1 else None


def _needs(kernel: KernelLike, problem: ProblemLike, variant: str) -> Rules:
    yield (kernel.pipeline == "depth") & (problem.C != problem.G), "depth needs one input channel a group"


DEPTH = Pipeline(
    name="depth",
    number=8,
    variants=CONV_VARIANTS,
    programs="tilewise.kernels.triton.programs.conv._depth",
    fuses=FORWARD,
    matrix_units=False,
    illegal=takes_one_tap,
    needs={"grouped_conv": _needs},
)

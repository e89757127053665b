"""The pipeline ``lanes``: as ``depth``, with one output channel per group too, and `num_stages` taps loaded at once.

Columns are channels, so the threads of a warp (its lanes) read neighbouring channels.
"""

from __future__ import annotations

from tilewise.kernels._contract import Rules
from tilewise.kernels._formulas import KernelLike, ProblemLike
from tilewise.kernels.triton._pipeline import FORWARD, PIXEL_VARIANTS, Pipeline
from tilewise.kernels.triton._shapes import multiplies_channels
from tilewise.kernels.triton.pipelines.depthwise._depth import takes_one_tap


def _limits(kernel: KernelLike, problem: ProblemLike, variant: str) -> Rules:
    several = multiplies_channels(problem)
    yield (kernel.pipeline == "lanes") & several, "lanes needs one input and one output channel a group"


LANES = Pipeline(
    name="lanes",
    number=19,
    variants=PIXEL_VARIANTS,
    programs="tilewise.kernels.triton.programs.conv.depthwise._lanes",
    fuses=FORWARD,
    matrix_units=False,
    illegal=takes_one_tap,
    limits={"grouped_conv": _limits},
)

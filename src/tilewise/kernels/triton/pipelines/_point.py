"""The pipeline ``point``: a 1x1 filter without padding, so that no load of the image needs a mask."""

from __future__ import annotations

from tilewise.kernels._contract import Rules
from tilewise.kernels._formulas import KernelLike, ProblemLike
from tilewise.kernels.triton._pipeline import CONV_VARIANTS, FORWARD, Pipeline
from tilewise.kernels.triton._shapes import reaches


def _needs(kernel: KernelLike, problem: ProblemLike, variant: str) -> Rules:
    yield (kernel.pipeline == "point") & reaches(problem), "point needs a 1x1 filter without padding"


POINT = Pipeline(
    name="point",
    number=13,
    variants=CONV_VARIANTS,
    programs="tilewise.kernels.triton.programs.conv._point",
    fuses=FORWARD,
    repeats_edges=True,
    needs={"grouped_conv": _needs},
)

"""The pipeline ``taps``: a step (in bwd_weight: a tile of columns) lies within one filter tap.

It is best where a group has many channels.
"""

from __future__ import annotations

from tilewise.kernels.triton._pipeline import CONV_VARIANTS, FORWARD, Pipeline

TAPS = Pipeline(
    name="taps",
    number=16,
    variants=CONV_VARIANTS,
    programs="tilewise.kernels.triton.programs.conv._taps",
    fuses=FORWARD,
    k_order="tapwise",
)

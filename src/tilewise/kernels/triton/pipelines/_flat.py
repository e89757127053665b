"""The pipeline ``flat``: steps cover the flattened (tap, channel) index, best where a group has few channels."""

from __future__ import annotations

from tilewise.kernels.triton._pipeline import CONV_VARIANTS, FORWARD, Pipeline

FLAT = Pipeline(
    name="flat",
    number=9,
    variants=CONV_VARIANTS,
    programs="tilewise.kernels.triton.programs.conv._flat",
    fuses=FORWARD,
    k_order="flattened",
)

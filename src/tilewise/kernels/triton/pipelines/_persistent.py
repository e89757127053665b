"""The pipeline ``persistent``: as ``tma``, but one program per compute unit computes tile after tile.

The loads of the next tile begin while one is stored, also through a tensor descriptor.
"""

from __future__ import annotations

from tilewise.kernels.triton._pipeline import Pipeline
from tilewise.kernels.triton.pipelines._tma import FUSED_PRODUCTS, PRODUCT_VARIANTS, product_limits

PERSISTENT = Pipeline(
    name="persistent",
    number=11,
    variants=PRODUCT_VARIANTS,
    programs="tilewise.kernels.triton.programs.conv._product",
    fuses=FUSED_PRODUCTS,
    described=True,
    persistent=True,
    limits={"grouped_conv": product_limits},
)

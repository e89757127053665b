"""The pipeline ``tma`` of the matrix product: loads through tensor descriptors (Hopper's tensor memory accelerator).

A convolution with a 1x1 filter and without padding, stride and groups is a matrix product as it is stored. A `tile_n`
of 3/2 of a power of two is computed in two parts.
"""

from __future__ import annotations

import numpy as np

from tilewise.kernels._contract import Rules
from tilewise.kernels._formulas import KernelLike, ProblemLike
from tilewise.kernels.triton._limits import LOADED_ROWS, RESULT_ELEMENTS, STORED_ROWS
from tilewise.kernels.triton._pipeline import CONV_VARIANTS, FORWARD, Pipeline
from tilewise.kernels.triton._shapes import reaches, residue_classes

PRODUCT_VARIANTS = (("gemm", "universal"), *CONV_VARIANTS)
FUSED_PRODUCTS = (("gemm", "universal"), *FORWARD)


def product_limits(kernel: KernelLike, problem: ProblemLike, variant: str) -> Rules:
    """Yield the rules of ``tma`` and ``persistent`` for a convolution: its tensors must be matrices."""
    product = (kernel.pipeline == "tma") | (kernel.pipeline == "persistent")
    if not np.any(product):
        return
    p, beyond = problem, reaches(problem) | (residue_classes(problem) > 1) | (problem.G > 1)
    yield product & beyond, "a matrix product needs a 1x1 filter, no padding, stride or groups"
    loaded, stored = (p.C, p.K) if variant == "forward" else (np.gcd(p.C, p.K), p.C)
    yield product & (loaded % RESULT_ELEMENTS != 0), LOADED_ROWS
    stores = (kernel.pipeline == "persistent") & (kernel.split_k == 1)
    yield stores & (stored % RESULT_ELEMENTS != 0), STORED_ROWS


TMA = Pipeline(
    name="tma",
    number=17,
    variants=PRODUCT_VARIANTS,
    programs="tilewise.kernels.triton.programs.conv._product",
    fuses=FUSED_PRODUCTS,
    described=True,
    thirds=tuple(variant for _, variant in PRODUCT_VARIANTS),
    limits={"grouped_conv": product_limits},
)

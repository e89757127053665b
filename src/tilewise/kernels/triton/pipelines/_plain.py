"""The pipeline ``plain`` of the matrix product: loads through pointers, one program per tile."""

from __future__ import annotations

from tilewise.kernels.triton._pipeline import Pipeline

PLAIN = Pipeline(
    name="plain",
    number=12,
    variants=(("gemm", "universal"),),
    programs="tilewise.kernels.triton.programs._matrix_product",
    fuses=(("gemm", "universal"),),
)

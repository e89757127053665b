"""Dense matrix product ``C[M, N] = A[M, K] @ B[K, N]``.

`layout` names the storage of A, B and C by one letter each: ``r`` for row-major, ``c`` for column-major. A kernel
decides how often to split K, so the split is no part of the problem.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from tilewise.ops._dtypes import operand_bytes, result_bytes
from tilewise.ops._problem import Dimensions, GemmDims, Problem, Size, require_int, require_int64, require_layout

GEMM_LAYOUTS = ("rcr", "rrr", "crr", "ccr")


def gemm_dims(p: Dimensions) -> GemmDims:
    """Return the sizes of the product, with a batch of one."""
    return GemmDims(p.M, p.N, p.K, p.M * 0 + 1)


def stored_by_column(p: Dimensions, matrix: str) -> Size:
    """Return whether matrix ``a``, ``b`` or ``c`` is stored column by column: a bool, or an array of shape (rows,)."""
    stored = p.layout == ""
    for layout in GEMM_LAYOUTS:
        if layout["abc".index(matrix)] == "c":
            stored = stored | (p.layout == layout)
    return stored


def stored_rows(p: Dimensions) -> dict[str, Size]:
    """Return the contiguous elements of ``a``, ``b`` and ``c``: the length of one stored row or column."""
    sizes = {"a": (p.M, p.K), "b": (p.K, p.N), "c": (p.M, p.N)}
    return {m: np.where(stored_by_column(p, m), down, along) for m, (down, along) in sizes.items()}


def gemm_flops(p: Dimensions) -> Size:
    """Return ``2 M N K``."""
    return 2 * p.M * p.N * p.K


def gemm_min_bytes(p: Dimensions, dtype: str) -> Size:
    """Return the bytes of reading A and B once and writing C once."""
    return operand_bytes(dtype) * (p.M * p.K + p.K * p.N) + result_bytes(dtype) * p.M * p.N


@dataclass(frozen=True)
class GemmProblem(Problem):
    """Sizes (in elements) and layout of one matrix product.

    Raises:
        ProblemError: a size is not a positive integer, the layout is unknown, or the FLOPs exceed int64.
    """

    op: ClassVar[str] = "gemm"
    variants: ClassVar[tuple[str, ...]] = ("universal",)
    layouts: ClassVar[tuple[str, ...]] = GEMM_LAYOUTS

    M: int
    N: int
    K: int
    layout: str = "rcr"

    def __post_init__(self) -> None:
        require_int(self, ("M", "N", "K"), at_least=1)
        require_layout(self.layout, GEMM_LAYOUTS)
        require_int64("K", "2 M N K", gemm_flops(self))

    @property
    def group_key(self) -> tuple[int, ...]:
        """``(M, N, K)``, without the layout, so that models are validated on shapes new to them in every layout."""
        return (self.M, self.N, self.K)

    @property
    def flops(self) -> int:
        """``2 M N K``."""
        return int(gemm_flops(self))

    def min_bytes(self, dtype: str) -> int:
        """Return the bytes of reading A and B once and writing C once."""
        return int(gemm_min_bytes(self, dtype))

    def implicit_gemm(self, variant: str) -> GemmDims:
        """Return the sizes of the product itself, whatever the variant."""
        return gemm_dims(self)

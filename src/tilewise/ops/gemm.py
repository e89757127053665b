"""Dense matrix product ``C[M, N] = A[M, K] @ B[K, N]``.

`layout` names the storage of A, B and C by one letter each: ``r`` row-major, ``c`` column-major. How often K is split
is the kernel's choice, not part of the problem.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from tilewise.errors import ProblemError
from tilewise.ops._base import GemmDims, Problem, require_int, require_int64
from tilewise.ops.dtypes import operand_bytes, result_bytes

LAYOUTS = ("rcr", "rrr", "crr", "ccr")


def gemm_dims(p: Any) -> GemmDims:
    """The product itself, with a batch of one."""
    return GemmDims(p.M, p.N, p.K, p.M * 0 + 1)


def stored_by_column(p: Any, matrix: str) -> Any:
    """Whether matrix ``a``, ``b`` or ``c`` is stored column by column."""
    stored = p.layout == ""
    for layout in LAYOUTS:
        if layout["abc".index(matrix)] == "c":
            stored = stored | (p.layout == layout)
    return stored


def stored_rows(p: Any) -> dict[str, Any]:
    """Neighbouring elements of A, B and C: the length of a stored row."""
    sizes = {"a": (p.M, p.K), "b": (p.K, p.N), "c": (p.M, p.N)}
    return {m: np.where(stored_by_column(p, m), down, along) for m, (down, along) in sizes.items()}


def flops(p: Any) -> Any:
    """``2 M N K``."""
    return 2 * p.M * p.N * p.K


def min_bytes(p: Any, dtype: str) -> Any:
    """A and B read once, C written once, in bytes."""
    return operand_bytes(dtype) * (p.M * p.K + p.K * p.N) + result_bytes(dtype) * p.M * p.N


@dataclass(frozen=True)
class GemmProblem(Problem):
    """One GEMM shape; sizes in elements.

    Raises:
        ProblemError: a size is not a positive integer, the layout is unknown, or the FLOPs exceed int64.
    """

    op: ClassVar[str] = "gemm"
    variants: ClassVar[tuple[str, ...]] = ("universal",)

    M: int
    N: int
    K: int
    layout: str = "rcr"

    def __post_init__(self) -> None:
        require_int(self, ("M", "N", "K"), at_least=1)
        if self.layout not in LAYOUTS:
            raise ProblemError("layout", f"must be one of {', '.join(LAYOUTS)}, got {self.layout!r}")
        require_int64("K", "2 M N K", flops(self))

    @property
    def group_key(self) -> tuple[int, ...]:
        """``(M, N, K)``: the layout is left out, so that models generalise across layouts."""
        return (self.M, self.N, self.K)

    @property
    def flops(self) -> int:
        """``2 M N K``."""
        return int(flops(self))

    def min_bytes(self, dtype: str) -> int:
        """A and B read once, C written once."""
        return int(min_bytes(self, dtype))

    def implicit_gemm(self, variant: str) -> GemmDims:
        """The product itself, for every variant."""
        return gemm_dims(self)

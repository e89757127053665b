"""Features of the dense matrix product. No pipelines are told apart yet: kernels for it come with their own columns."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from tilewise.features._base import Feature, FeatureTable
from tilewise.features._tiles import (
    HARDWARE_FEATURES,
    KERNEL_FEATURES,
    TILE_FEATURES,
    TileInputs,
    alignment,
    log2,
)
from tilewise.ops import GemmDims
from tilewise.ops import gemm as op
from tilewise.ops.dtypes import operand_bytes


class GemmInputs(TileInputs):
    """Intermediates of the matrix product; see :class:`TileInputs`."""

    @cached_property
    def gemm(self) -> GemmDims:
        """The product itself."""
        return op.gemm_dims(self.p)

    @cached_property
    def flops(self) -> Any:
        """Floating-point operations."""
        return op.flops(self.p)

    @cached_property
    def min_bytes(self) -> Any:
        """Each matrix once."""
        return op.min_bytes(self.p, self.dtype)

    @property
    def a_bytes(self) -> Any:
        """Matrix A."""
        return self.p.M * self.p.K * operand_bytes(self.dtype)

    @property
    def b_bytes(self) -> Any:
        """Matrix B."""
        return self.p.K * self.p.N * operand_bytes(self.dtype)

    @property
    def result_elements(self) -> Any:
        """Elements of C."""
        return self.p.M * self.p.N

    @cached_property
    def depth(self) -> Any:
        """Never: every kernel uses matrix units."""
        return np.zeros(len(self.k.pipeline), dtype=bool)

    def column_major(self, matrix: int) -> Any:
        """1.0 where matrix 0 (A), 1 (B) or 2 (C) is stored column by column."""
        return np.array([float(layout[matrix] == "c") for layout in self.p.layout.tolist()])


_PROBLEM = (
    Feature("M", "", "rows", "problem", lambda i: i.p.M),
    Feature("N", "", "columns", "problem", lambda i: i.p.N),
    Feature("K", "", "depth", "problem", lambda i: i.p.K),
    Feature("m_log2", "log2", "rows", "problem", lambda i: log2(i.p.M)),
    Feature("n_log2", "log2", "columns", "problem", lambda i: log2(i.p.N)),
    Feature("k_log2", "log2", "depth", "problem", lambda i: log2(i.p.K)),
    Feature("m_alignment", "", "largest power of two up to 16 that divides M", "problem", lambda i: alignment(i.p.M)),
    Feature("n_alignment", "", "largest power of two up to 16 that divides N", "problem", lambda i: alignment(i.p.N)),
    Feature("k_alignment", "", "largest power of two up to 16 that divides K", "problem", lambda i: alignment(i.p.K)),
    Feature("a_column_major", "flag", "A is stored column by column", "problem", lambda i: i.column_major(0)),
    Feature("b_column_major", "flag", "B is stored column by column", "problem", lambda i: i.column_major(1)),
    Feature("aspect_mn_log2", "log2", "rows / columns", "problem", lambda i: log2(i.p.M / i.p.N)),
    Feature("aspect_mk_log2", "log2", "rows / depth", "problem", lambda i: log2(i.p.M / i.p.K)),
    Feature("aspect_nk_log2", "log2", "columns / depth", "problem", lambda i: log2(i.p.N / i.p.K)),
    Feature("flops_log2", "log2(FLOP)", "floating-point operations", "problem", lambda i: log2(i.flops)),
    Feature("min_bytes_log2", "log2(bytes)", "each matrix once", "problem", lambda i: log2(i.min_bytes)),
    Feature("result_bytes_log2", "log2(bytes)", "the written matrix", "problem", lambda i: log2(i.result_bytes)),
    Feature("intensity_log2", "log2(FLOP/byte)", "FLOPs / fewest bytes", "problem", lambda i: log2(i.intensity)),
    Feature("ridge_log2", "log2", "intensity / the hardware's ridge", "problem", lambda i: log2(i.intensity / i.ridge)),
    Feature("l2_log2", "log2", "fewest bytes / L2", "problem", lambda i: log2(i.min_bytes / i.arch.l2_bytes)),
    Feature(
        "roofline_log2", "log2(clocks)", "least time by peak and bandwidth", "problem",
        lambda i: log2(i.roofline_clocks),
    ),
)  # fmt: skip

TABLE = FeatureTable("gemm", (*_PROBLEM, *KERNEL_FEATURES, *TILE_FEATURES, *HARDWARE_FEATURES), GemmInputs)

"""The features, costs and drivers of the dense matrix product."""

from __future__ import annotations

from functools import cache, cached_property

import numpy as np

from tilewise.features._block_inputs import UNIT_BYTES_PER_CLOCK, WIDEST_LOAD, alignment, log2
from tilewise.features._ck_features import CK_FEATURES, GEMM_LAYOUT_FEATURES, STREAMK_FEATURES
from tilewise.features._feature_table import Feature, FeatureTable, Term
from tilewise.features._tile_features import (
    ARCH_FEATURES,
    HARDWARE_FEATURES,
    KERNEL_FEATURES,
    NAMED_FEATURES,
    TILE_FEATURES,
    pipeline_features,
)
from tilewise.features._tile_inputs import TileInputs
from tilewise.features._tile_terms import TILE_COSTS, TILE_DRIVERS
from tilewise.kernels import Array
from tilewise.kernels.ck import CK_TILE
from tilewise.kernels.triton import pipelines_of
from tilewise.ops import GemmDims, gemm_dims, gemm_flops, gemm_min_bytes, operand_bytes, stored_by_column, stored_rows


class GemmInputs(TileInputs):
    """Intermediates of the matrix product; see :class:`TileInputs`."""

    op = "gemm"
    least_copy = WIDEST_LOAD

    @cached_property
    def gemm(self) -> GemmDims:
        """The product itself."""
        return gemm_dims(self.p)

    @cached_property
    def flops(self) -> Array:
        """Floating-point operations."""
        return gemm_flops(self.p)

    @cached_property
    def min_bytes(self) -> Array:
        """Bytes of each matrix once."""
        return gemm_min_bytes(self.p, self.dtype)

    @property
    def a_bytes(self) -> Array:
        """Bytes of matrix A."""
        return self.p.M * self.p.K * operand_bytes(self.dtype)

    @property
    def b_bytes(self) -> Array:
        """Bytes of matrix B."""
        return self.p.K * self.p.N * operand_bytes(self.dtype)

    @property
    def result_elements(self) -> Array:
        """Elements of C."""
        return self.p.M * self.p.N

    @cached_property
    def stored(self) -> dict[str, Array]:
        """Flags of A and B being stored column by column: bool, (rows,)."""
        return {m: stored_by_column(self.p, m) for m in "ab"}

    def column_major(self, matrix: str) -> Array:
        """Return 1.0 where matrix ``a`` or ``b`` is stored column by column, else 0.0."""
        return self.stored[matrix] * 1.0

    @cached_property
    def contiguous(self) -> dict[str, Array]:
        """Neighbouring elements of A and of B: the length of a stored row."""
        return stored_rows(self.p)

    @cached_property
    def even_steps(self) -> Array:
        """Steps of an average compute unit: those of the busiest if the last wave were divided evenly."""
        return self.grid_programs * self.grid_steps / self.arch.compute_units

    @cached_property
    def inside_load_clocks(self) -> Array:
        """Clocks of an average step's loads, without the elements beyond the edges of the matrices."""
        k = self.k
        inside = self.efficiency_m * k.tile_m + self.efficiency_n * k.tile_n
        return inside * k.tile_k * operand_bytes(self.dtype) / UNIT_BYTES_PER_CLOCK

    @cached_property
    def reread_clocks(self) -> Array:
        """Clocks of memory if no wave finds the data of an earlier one in L2."""
        read = np.minimum(np.maximum(self.grid_waves, 1.0) * self.wave_bytes, self.traffic)
        return np.maximum(read / self._dram_bytes_per_clock, self.dram_clocks)

    @cached_property
    def alignment_class(self) -> Array:
        """Number of the compiled properties: how A and B are stored, and whether rows allow the widest loads."""
        wide = self.fills("a", WIDEST_LOAD) & self.fills("b", WIDEST_LOAD)
        return 4 * self.stored["a"] + 2 * self.stored["b"] + wide


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
    Feature("a_column_major", "flag", "A is stored column by column", "problem", lambda i: i.column_major("a")),
    Feature("b_column_major", "flag", "B is stored column by column", "problem", lambda i: i.column_major("b")),
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

_LAUNCH = (
    Feature(
        "run_a_alignment", "", "largest power of two up to 128 that divides a stored row of A", "problem",
        lambda i: alignment(i.contiguous["a"], 128),
    ),
    Feature(
        "run_b_alignment", "", "largest power of two up to 128 that divides a stored row of B", "problem",
        lambda i: alignment(i.contiguous["b"], 128),
    ),
    Feature("k_is_whole", "flag", "tile_k divides K", "interaction", lambda i: i.p.K % i.k.tile_k == 0),
    Feature("grid_waves_log2", "log2", "programs / those at once, persistent ones counted", "interaction", lambda i: (
        log2(i.grid_waves)
    )),
    Feature("workspace_time_log2", "log2", "1 + clocks of L2 on partial sums / least time", "interaction", lambda i: (
        log2(1.0 + i.workspace_traffic / i.arch.compute_units / i.roofline_clocks)
    )),
)  # fmt: skip

# A product's tiles may be many more than a wave holds, of matrices much smaller or larger than they are.
_COSTS = (
    Term("even_arithmetic", "products of tiles, shared out evenly", lambda i: i.even_steps * i.step_compute_clocks),
    Term("even_loads", "operand bytes from L2, shared out evenly", lambda i: i.even_steps * i.step_load_clocks),
    Term("inside_loads", "operand bytes inside the matrices", lambda i: i.busy_steps * i.inside_load_clocks),
    Term("even_inside_loads", "operand bytes inside the matrices, shared out evenly", lambda i: (
        i.even_steps * i.inside_load_clocks
    )),
    Term("rereads", "bytes from memory, each wave's anew", lambda i: i.reread_clocks),
    Term("result_traffic", "bytes of C, shared out evenly", lambda i: (
        i.result_bytes / (i.arch.compute_units * UNIT_BYTES_PER_CLOCK)
    )),
)  # fmt: skip

_DRIVERS = (
    Term("a_column_major", "A is stored column by column", lambda i: i.column_major("a")),
    Term("b_column_major", "B is stored column by column", lambda i: i.column_major("b")),
    Term("a_aligned", "log2 of what divides a stored row of A", lambda i: log2(alignment(i.contiguous["a"], 64))),
    Term("b_aligned", "log2 of what divides a stored row of B", lambda i: log2(alignment(i.contiguous["b"], 64))),
    Term("c_aligned", "log2 of what divides N", lambda i: log2(alignment(i.p.N, 64))),
)  # fmt: skip

# These flags stand first in the matrix, in this order; those of later pipelines stand last.
_FIRST_FLAGS = ("plain", "tma", "persistent")


def gemm_table() -> FeatureTable:
    """Return the features of the matrix product, with a flag for each pipeline that is registered now."""
    return _table(pipelines_of("gemm"), tuple(CK_TILE.pipelines("gemm")))


@cache
def _table(pipelines: tuple[str, ...], ck_pipelines: tuple[str, ...]) -> FeatureTable:
    later = (name for name in pipelines if name not in _FIRST_FLAGS)
    features = (
        *_PROBLEM, *KERNEL_FEATURES, *TILE_FEATURES, *HARDWARE_FEATURES, *pipeline_features(_FIRST_FLAGS), *_LAUNCH,
        *CK_FEATURES, *pipeline_features(ck_pipelines), *GEMM_LAYOUT_FEATURES, *NAMED_FEATURES,
        *pipeline_features(later), *STREAMK_FEATURES, *ARCH_FEATURES,
    )  # fmt: skip
    return FeatureTable("gemm", features, GemmInputs, (*TILE_COSTS, *_COSTS), (*TILE_DRIVERS, *_DRIVERS))

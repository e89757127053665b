"""Intermediates of a whole launch of a tiled matrix product: its grid, its traffic, and its estimated time.

Compute units hold `resident` programs at a time; a full set over all units is a wave. The launch time comes from a
plain pipeline model: in each wave a unit's programs share its matrix units and its path to L2, and a step takes the
longest of arithmetic, loads, and the latency that too few stages leave uncovered. Its constants are orders of
magnitude, the same on every arch: a model learns the differences, and only ratios reach it.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from tilewise.features._block_inputs import (
    LATENCY_CLOCKS,
    LAUNCH_CLOCKS,
    UNIT_BYTES_PER_CLOCK,
    BlockInputs,
    ceil_div,
)
from tilewise.kernels import Array
from tilewise.ops import operand_bytes, result_bytes

WORKSPACE_BYTES = 4  # partial sums are fp32


class TileInputs(BlockInputs):
    """Intermediates of a launch. Ops replace those that their kernels compute in another way."""

    # ---- intermediates that pipelines replace -----------------------------------------------------------------------

    @property
    def common_steps(self) -> Array:
        """Steps along all of K before the formulas of pipelines."""
        return ceil_div(self.gemm.k, self.step_k)

    @cached_property
    def steps(self) -> Array:
        """Steps along all of K."""
        steps = self.common_steps
        for formulas in self.formulas:
            steps = formulas.steps(self, steps)
        return steps

    @cached_property
    def reuse(self) -> Array:
        """Steps that one load serves from registers."""
        reuse: Array = 1
        for formulas in self.formulas:
            reuse = formulas.reuse(self, reuse)
        return reuse

    @cached_property
    def tiles_m(self) -> Array:
        """Tiles along M."""
        tiles = ceil_div(self.gemm.m, self.k.tile_m)
        for formulas in self.formulas:
            tiles = formulas.tiles_m(self, tiles)
        return tiles

    # ---- problem x kernel -------------------------------------------------------------------------------------------

    @cached_property
    def cols(self) -> Array:
        """Columns that tiles divide: those of one group, or of all groups where these are columns."""
        return np.where(self.direct, self.gemm.n * self.gemm.batch, self.gemm.n)

    @cached_property
    def tiles_n(self) -> Array:
        """Tiles along N (of one group)."""
        return ceil_div(self.cols, self.k.tile_n)

    @property
    def products(self) -> Array:
        """Matrix products whose tiles a launch computes: one per group."""
        return self.gemm.batch

    @cached_property
    def tiles(self) -> Array:
        """Tiles of the result, over all groups."""
        return self.tiles_m * self.tiles_n * np.where(self.direct, 1, self.products)

    @cached_property
    def programs(self) -> Array:
        """Programs of the launch."""
        return self.tiles * self.k.split_k

    @cached_property
    def efficiency_m(self) -> Array:
        """Useful share of the tiles along M."""
        return self.gemm.m / (self.tiles_m * self.k.tile_m)

    @cached_property
    def efficiency_n(self) -> Array:
        """Useful share of the tiles along N."""
        return self.cols / (self.tiles_n * self.k.tile_n)

    @cached_property
    def efficiency_k(self) -> Array:
        """Useful share of the steps along K."""
        return self.gemm.k / (self.steps * self.step_k)

    @cached_property
    def efficiency(self) -> Array:
        """Useful share of the arithmetic."""
        return self.efficiency_m * self.efficiency_n * self.efficiency_k

    @cached_property
    def program_steps(self) -> Array:
        """Steps of the longest program."""
        return ceil_div(self.steps, self.k.split_k)

    @cached_property
    def slots(self) -> Array:
        """Programs of a full wave."""
        return self.arch.compute_units * self.resident

    @cached_property
    def waves(self) -> Array:
        """Waves, as a fraction."""
        return self.programs / self.slots

    @cached_property
    def wave_efficiency(self) -> Array:
        """Useful share of the waves' slots."""
        return self.waves / np.ceil(self.waves)

    @cached_property
    def unit_efficiency(self) -> Array:
        """Average load of a compute unit / load of the busiest."""
        each = self.programs / self.arch.compute_units
        return each / np.ceil(each)

    @cached_property
    def fill_efficiency(self) -> Array:
        """Useful share of a program's time when its pipeline fills and drains once."""
        return self.program_steps / (self.program_steps + self.k.num_stages - 1.0)

    @cached_property
    def a_traffic(self) -> Array:
        """Bytes of the operand along M that all programs load, without masked ones."""
        g = self.gemm
        passes = np.where(self.direct, g.n, self.tiles_n)
        return 1.0 * g.m * g.k * g.batch * passes * operand_bytes(self.dtype)

    @cached_property
    def b_traffic(self) -> Array:
        """Bytes of the operand along N that all programs load, without masked ones."""
        g = self.gemm
        return 1.0 * g.n * g.k * g.batch * self.tiles_m * operand_bytes(self.dtype)

    @cached_property
    def traffic(self) -> Array:
        """Bytes that all programs load and store."""
        return self.a_traffic + self.b_traffic + self.result_bytes + self.workspace_traffic

    @cached_property
    def result_bytes(self) -> Array:
        """Bytes of the written tensor."""
        return 1.0 * self.result_elements * result_bytes(self.dtype)

    @cached_property
    def workspace_bytes(self) -> Array:
        """Bytes of partial sums, 0 without split-K, and of operands that are copied first."""
        size = np.where(self.k.split_k > 1, 1.0 * self.k.split_k * self.result_elements * WORKSPACE_BYTES, 0.0)
        for formulas in self.formulas:
            size = formulas.workspace(self, size)
        return size

    @cached_property
    def workspace_traffic(self) -> Array:
        """Bytes of partial sums, written once and read once, and of copies with what they copy."""
        return 2.0 * self.workspace_bytes

    @cached_property
    def wave_rows(self) -> Array:
        """Row tiles that a wave touches: programs go down `group_m` rows, then along the columns."""
        together = np.minimum(self.slots, self.tiles_m * self.tiles_n)
        return np.clip(together / self.tiles_n, np.minimum(self.k.group_m, self.tiles_m), self.tiles_m)

    @cached_property
    def wave_cols(self) -> Array:
        """Column tiles that a wave touches."""
        together = np.minimum(self.slots, self.tiles_m * self.tiles_n)
        return np.clip(together / self.wave_rows, 1.0, self.tiles_n)

    @cached_property
    def wave_reuse(self) -> Array:
        """Operand bytes that a wave's programs load / distinct ones, which L2 has to hold."""
        k = self.k
        distinct = self.wave_rows * k.tile_m + self.wave_cols * k.tile_n
        return self.wave_rows * self.wave_cols * (k.tile_m + k.tile_n) / distinct

    @cached_property
    def wave_bytes(self) -> Array:
        """Distinct operand bytes that a wave's programs load over all of K."""
        k = self.k
        distinct = self.wave_rows * k.tile_m + self.wave_cols * k.tile_n
        return distinct * self.program_steps * self.step_k * operand_bytes(self.dtype)

    # ---- the grid as launched ---------------------------------------------------------------------------------------

    @property
    def grid_programs(self) -> Array:
        """Programs of the launch as compiled; ops override it where their kernels divide the product differently."""
        return self.programs

    @property
    def grid_steps(self) -> Array:
        """Steps of an average program of the launch."""
        return self.program_steps

    @property
    def longest_steps(self) -> Array:
        """Steps of the longest program of the launch."""
        return self.program_steps

    @cached_property
    def grid_resident(self) -> Array:
        """Programs that a compute unit holds; a persistent one occupies it alone."""
        return np.where(self.traits.persistent, 1.0, self.resident)

    @cached_property
    def grid_waves(self) -> Array:
        """Waves, as a fraction."""
        return self.grid_programs / (self.arch.compute_units * self.grid_resident)

    @cached_property
    def busy_programs(self) -> Array:
        """Programs that the busiest compute unit runs."""
        full = np.floor(self.grid_waves)
        rest = self.grid_programs - full * self.arch.compute_units * self.grid_resident
        return full * self.grid_resident + np.ceil(rest / self.arch.compute_units)

    @cached_property
    def busy_steps(self) -> Array:
        """Steps of those programs together."""
        return self.busy_programs * self.grid_steps

    @cached_property
    def latency_steps(self) -> Array:
        """Steps one after another: programs of a wave run side by side."""
        return np.ceil(self.grid_waves) * self.longest_steps

    # ---- launch time -------------------------------------------------------------------------------------------------

    def _wave_clocks(self, resident: Array) -> Array:
        """Return the clocks of a wave with this many programs on the busiest unit."""
        shared = resident * np.maximum(self.step_compute_clocks, self.step_load_clocks)
        step = np.maximum(shared, self.step_latency_clocks)
        store = self.tile_area * np.where(self.k.split_k > 1, WORKSPACE_BYTES, result_bytes(self.dtype))
        return self.program_steps * step + 2.0 * LATENCY_CLOCKS + resident * store / UNIT_BYTES_PER_CLOCK

    @cached_property
    def compute_clocks(self) -> Array:
        """Clocks of arithmetic alone, padding included, on the busiest compute unit."""
        each = np.ceil(self.programs / self.arch.compute_units)
        return each * self.program_steps * self.step_compute_clocks

    @cached_property
    def load_clocks(self) -> Array:
        """Clocks of loads from L2 alone, on the busiest compute unit."""
        each = np.ceil(self.programs / self.arch.compute_units)
        return each * self.program_steps * self.step_load_clocks

    @cached_property
    def launch_clocks(self) -> Array:
        """Clocks by the pipeline model: full waves, the last wave and launches, at least the time of memory traffic."""
        full = np.floor(self.waves)
        rest = self.programs - full * self.slots
        last = np.ceil(rest / self.arch.compute_units)
        grid = full * self._wave_clocks(self.resident) + np.where(rest > 0, self._wave_clocks(last), 0.0)
        memory = self.dram_clocks + self.workspace_traffic / self._dram_bytes_per_clock
        return np.maximum(grid, memory) + LAUNCH_CLOCKS * np.where(self.workspace_bytes > 0, 2.0, 1.0)

    @cached_property
    def estimated_efficiency(self) -> Array:
        """Least possible time / estimated time."""
        return self.roofline_clocks / self.launch_clocks

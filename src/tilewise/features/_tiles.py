"""Intermediates and features that every tiled matrix product shares, whatever the op.

A launch is a grid of programs, each of which walks K in steps of `tile_k` and keeps a `tile_m` x `tile_n` block of the
result. Compute units hold `resident` programs at a time; a full set over all units is a wave.

The estimate of a launch's time is a plain pipeline model: in each wave a unit's programs share its matrix units and its
path to L2, and a step takes the longest of arithmetic, loads, and the latency that too few stages leave uncovered. Its
constants are orders of magnitude, the same on every arch: a model learns what they miss, and only ratios reach it.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property, reduce
from operator import or_
from types import SimpleNamespace
from typing import Any

import numpy as np

from tilewise.features._base import Feature, Inputs, Term
from tilewise.kernels.ck.rules import GEMM_PIPELINES as _CK_PIPELINES
from tilewise.kernels.rules import (
    CONV_PIPELINES,
    DESCRIBED,
    GEMM_PIPELINES,
    PIXEL_PIPELINES,
    RESULT_BYTES,
    WARPGROUP_ROWS,
    accumulators_per_thread,
    is_product,
    stores_tiles,
)
from tilewise.ops import GemmDims
from tilewise.ops.dtypes import operand_bytes, result_bytes
from tilewise.ops.gemm import LAYOUTS

WARPGROUP = 4  # warps that issue one warpgroup matrix instruction (Hopper)
FALLBACK_RATE = 0.6  # share of the peak that the older instructions reach, which smaller tiles fall back to
# 32-bit registers of a thread besides its sums, fitted to what ptxas reports for the pools' kernels on sm90.
DESCRIBED_REGISTERS = 26  # loop state, where descriptors keep the addresses
BASE_REGISTERS = 40  # ... and some addresses
STAGED_REGISTERS = 0.25  # for each element of a step that is copied past them: 8 share an address
LOADED_REGISTERS = 2.75  # ... that is loaded through them: itself, its address, its mask
FILTER_REGISTERS = 45  # without matrix units
FILTER_SUM_REGISTERS = 2.5  # for each sum there, it included
PIXEL_SUM_REGISTERS = 1.3  # ... where a program keeps products of one pixel, and adds as it goes
MAX_REGISTERS = 255
BLOCK_RESERVE_BYTES = 1024  # shared memory that the system takes for each block
FMA_LANES = 128  # fp32 multiply-adds a clock and compute unit outside the matrix units
UNIT_BYTES_PER_CLOCK = 64  # between a compute unit and L2
LATENCY_CLOCKS = 800  # one trip to memory
LAUNCH_CLOCKS = 4000  # a launch, and likewise each further one
WORKSPACE_BYTES = 4  # partial sums are fp32
SECTOR_BYTES = 32  # the smallest transaction of the memory system
VECTOR = 8  # elements of 16 bits in the widest load; sizes that divide by it compile to other programs
CK_WARPS = 4  # of a CK Tile kernel whose name does not tell

CK_PIPELINES = _CK_PIPELINES
# Models keep their numbers, so new walks come last.
WALKS = (*sorted({*CONV_PIPELINES, *GEMM_PIPELINES, *CK_PIPELINES}), *PIXEL_PIPELINES)
_SORTED = np.argsort(WALKS)
CLASSES_PER_WALK = 64  # room for what an op tells apart


def log2(x: Any) -> Any:
    """Base-2 logarithm as float64; 0 gives that of a tiny number, so that no infinity reaches a model."""
    return np.log2(np.maximum(x, 2.0**-60))


def ceil_div(a: Any, b: Any) -> Any:
    """``ceil(a / b)`` in integers."""
    return -(-a // b)


def alignment(x: Any, most: int = 16) -> Any:
    """The largest power of two up to `most` that divides x."""
    return np.minimum(x & -x, most)


class TileInputs(Inputs):
    """Intermediates of a tiled matrix product. Ops fill in the matrix product and the tensors."""

    def common_columns(self, k: SimpleNamespace) -> SimpleNamespace:
        """Triton's columns; CK Tile's are put in their words: warps of a block, buffers in shared memory as stages."""
        if not hasattr(k, "warp_m"):
            return k
        warps, one = k.warp_m * k.warp_n * k.warp_k, np.ones_like(k.tile_m)
        warps = np.where(warps > 0, warps, CK_WARPS)
        return SimpleNamespace(
            **vars(k), num_warps=warps, num_stages=one + k.double_smem_buffer, group_m=one, split_k=one
        )

    # ---- what an op says about itself -------------------------------------------------------------------------------

    @property
    def gemm(self) -> GemmDims:
        """The matrix product, one per group."""
        raise NotImplementedError

    @property
    def flops(self) -> Any:
        """Useful floating-point operations."""
        raise NotImplementedError

    @property
    def min_bytes(self) -> Any:
        """Each tensor once."""
        raise NotImplementedError

    @property
    def a_bytes(self) -> Any:
        """The operand along M, as stored."""
        raise NotImplementedError

    @property
    def b_bytes(self) -> Any:
        """The operand along N, as stored."""
        raise NotImplementedError

    @property
    def result_elements(self) -> Any:
        """Elements of the written tensor."""
        raise NotImplementedError

    @property
    def steps(self) -> Any:
        """Steps along all of K."""
        return ceil_div(self.gemm.k, self.step_depth)

    @property
    def run(self) -> Mapping[str, Any]:
        """Neighbouring elements of the operands ``a`` (along M) and ``b`` (along N) in memory."""
        raise NotImplementedError

    @property
    def depth(self) -> Any:
        """Where the kernel filters without matrix units; groups are columns then, not a grid dimension."""
        return ~is_product(self.k)

    @property
    def filter_sum_registers(self) -> float:
        """Registers for each sum of a kernel without matrix units."""
        return FILTER_SUM_REGISTERS

    @cached_property
    def step_depth(self) -> Any:
        """What a step takes of K; one filter tap without matrix units."""
        return np.where(self.depth, 1, self.k.tile_k)

    @property
    def reuse(self) -> Any:
        """Steps that what is loaded for one serves from registers."""
        return 1

    # ---- problem ----------------------------------------------------------------------------------------------------

    @cached_property
    def intensity(self) -> Any:
        """FLOP/byte at the fewest bytes."""
        return self.flops / self.min_bytes

    @cached_property
    def ridge(self) -> float:
        """FLOP/byte where memory and matrix units take equally long."""
        return self.arch.peak(self.dtype) * 1e3 / self.arch.dram_gb_s

    @cached_property
    def dram_clocks(self) -> Any:
        """Clocks to move the fewest bytes."""
        return self.min_bytes / self._dram_bytes_per_clock

    @cached_property
    def roofline_clocks(self) -> Any:
        """The least clocks that the problem can take, whatever the kernel."""
        compute = self.flops / (self._flops_per_clock * self.arch.compute_units)
        return np.maximum(compute, self.dram_clocks) + LAUNCH_CLOCKS

    @property
    def _dram_bytes_per_clock(self) -> float:
        return self.arch.dram_gb_s * 1e3 / self.arch.clock_mhz

    @property
    def _flops_per_clock(self) -> float:
        """Of the matrix units of one compute unit."""
        return self.arch.peak(self.dtype) * 1e6 / (self.arch.clock_mhz * self.arch.compute_units)

    # ---- kernel -----------------------------------------------------------------------------------------------------

    def pipeline_is(self, name: str) -> Any:
        """1.0 where the kernel walks K like this."""
        return (self.k.pipeline == name).astype(np.float64)

    def setting(self, name: str) -> Any:
        """A column that only CK Tile's kernels have; 0 for others."""
        return getattr(self.k, name, 0)

    def setting_is(self, name: str, value: str) -> Any:
        """1.0 where such a column holds this text."""
        return np.asarray(getattr(self.k, name, "") == value, dtype=np.float64)

    @cached_property
    def walk(self) -> Any:
        """The pipeline as a number."""
        return _SORTED[np.searchsorted(np.array(WALKS), self.k.pipeline, sorter=_SORTED)]

    @property
    def alignment_class(self) -> Any:
        """Which compiled program of its pipeline serves the row, a number below :data:`CLASSES_PER_WALK`."""
        raise NotImplementedError

    @cached_property
    def program_class(self) -> Any:
        """Which compiled program serves the row: int64, (rows,). Costs differ between them by factors."""
        return np.broadcast_to(self.walk * CLASSES_PER_WALK + self.alignment_class, (self.n_rows,)).astype(np.int64)

    @cached_property
    def threads(self) -> Any:
        """Threads of a block."""
        return self.k.num_warps * self.arch.warp_size

    @cached_property
    def tile_area(self) -> Any:
        """Results a program computes."""
        return self.k.tile_m * self.k.tile_n

    @cached_property
    def accumulators(self) -> Any:
        """Partial sums a thread holds."""
        return accumulators_per_thread(self.k, self.arch)

    @cached_property
    def step_elements(self) -> Any:
        """Operand elements a program loads in a step."""
        matrix = (self.k.tile_m + self.k.tile_n) * self.k.tile_k
        return np.where(self.depth, self.tile_area + self.k.tile_n, matrix)

    @cached_property
    def step_bytes(self) -> Any:
        """Operand bytes a program loads in a step."""
        return self.step_elements * operand_bytes(self.dtype)

    @cached_property
    def for_ck(self) -> bool:
        """Whether the kernels are CK Tile's; Triton's otherwise."""
        return hasattr(self.k, "warp_m")

    @cached_property
    def described(self) -> Any:
        """Where operands are loaded through tensor descriptors."""
        return reduce(or_, (self.k.pipeline == walk for walk in DESCRIBED))

    def staged(self, matrix: str) -> Any:
        """Where loads of operand ``a`` or ``b`` go to shared memory ahead of their use; else through registers.

        Triton's asynchronous copies take 16 bytes, which neighbouring elements have to fill.
        """
        return self.described | self.for_ck | self.widest(matrix)

    def widest(self, matrix: str) -> Any:
        """Whether neighbouring elements of operand ``a`` or ``b`` fill the widest load."""
        return self.run[matrix] % (VECTOR * 2 // operand_bytes(self.dtype)) == 0

    @cached_property
    def buffers(self) -> Any:
        """Steps of a staged operand in shared memory: all stages, less the one in registers where units read those."""
        return np.where(self.warpgroup | self.for_ck, self.k.num_stages, np.maximum(self.k.num_stages - 1, 1))

    @cached_property
    def shared_bytes(self) -> Any:
        """Shared memory of a block, as compiled for the problem."""
        k = self.k
        rows = k.tile_m * np.where(self.staged("a"), self.buffers, 1)
        cols = k.tile_n * np.where(self.staged("b"), self.buffers, 1)
        result = 0 if self.for_ck else stores_tiles(k) * self.tile_area * RESULT_BYTES
        return np.where(self.depth, 0, (rows + cols) * k.tile_k * operand_bytes(self.dtype) + result)

    @cached_property
    def registers(self) -> Any:
        """Registers a thread takes, estimated: sums, addresses, and what is loaded through registers."""
        k, per_element = self.k, {m: np.where(self.staged(m), STAGED_REGISTERS, LOADED_REGISTERS) for m in "ab"}
        step = (k.tile_m * per_element["a"] + k.tile_n * per_element["b"]) * k.tile_k / self.threads
        matrix = self.accumulators + np.where(self.described, DESCRIBED_REGISTERS, BASE_REGISTERS + step)
        taken = np.where(self.depth, FILTER_REGISTERS + self.filter_sum_registers * self.accumulators, matrix)
        return np.minimum(taken, MAX_REGISTERS)

    @cached_property
    def resident_by_memory(self) -> Any:
        """Blocks whose shared memory fits a compute unit, at least 1."""
        return np.maximum(self.arch.shared_memory_unit_bytes // (self.shared_bytes + BLOCK_RESERVE_BYTES), 1)

    @cached_property
    def resident_by_registers(self) -> Any:
        """Blocks whose registers, a multiple of 8 a thread, fit a compute unit, at least 1."""
        each = np.ceil(self.registers / 8) * 8 * self.threads
        return np.maximum(np.floor(self.arch.registers / each), 1.0)

    @cached_property
    def resident(self) -> Any:
        """Blocks that a compute unit holds: the least of four limits, at least 1."""
        limit = np.minimum(self.arch.max_threads // self.threads, self.arch.max_blocks)
        return np.maximum(np.minimum(np.minimum(self.resident_by_memory, self.resident_by_registers), limit), 1.0)

    @cached_property
    def warpgroup(self) -> Any:
        """Whether warps and rows suffice for warpgroup instructions."""
        return (self.k.num_warps % WARPGROUP == 0) & (self.k.tile_m >= WARPGROUP_ROWS) & ~self.depth

    @cached_property
    def step_compute_clocks(self) -> Any:
        """Clocks of a compute unit's arithmetic for one program's step."""
        rate = np.where(self.warpgroup, self._flops_per_clock, self._flops_per_clock * FALLBACK_RATE)
        rate = np.where(self.depth, 2.0 * FMA_LANES, rate)
        return 2.0 * self.tile_area * self.step_depth / rate

    @cached_property
    def step_load_clocks(self) -> Any:
        """Clocks of a compute unit's path to L2 for one program's step."""
        return self.step_bytes / UNIT_BYTES_PER_CLOCK

    @cached_property
    def step_latency_clocks(self) -> Any:
        """Clocks of a step that latency alone asks for: stages hide it, except for the one in use."""
        return LATENCY_CLOCKS / np.maximum(self.k.num_stages - 1.0, 1.0)

    # ---- problem x kernel -------------------------------------------------------------------------------------------

    @cached_property
    def cols(self) -> Any:
        """Columns that tiles divide: those of one group, or of all where groups are no grid dimension."""
        return np.where(self.depth, self.gemm.n * self.gemm.batch, self.gemm.n)

    @cached_property
    def tiles_m(self) -> Any:
        """Tiles along M."""
        return ceil_div(self.gemm.m, self.k.tile_m)

    @cached_property
    def tiles_n(self) -> Any:
        """Tiles along N (of one group)."""
        return ceil_div(self.cols, self.k.tile_n)

    @cached_property
    def tiles(self) -> Any:
        """Tiles of the result, over all groups."""
        return self.tiles_m * self.tiles_n * np.where(self.depth, 1, self.gemm.batch)

    @cached_property
    def programs(self) -> Any:
        """Programs of the launch."""
        return self.tiles * self.k.split_k

    @cached_property
    def efficiency_m(self) -> Any:
        """Useful share of the tiles along M."""
        return self.gemm.m / (self.tiles_m * self.k.tile_m)

    @cached_property
    def efficiency_n(self) -> Any:
        """Useful share of the tiles along N."""
        return self.cols / (self.tiles_n * self.k.tile_n)

    @cached_property
    def efficiency_k(self) -> Any:
        """Useful share of the steps along K."""
        return self.gemm.k / (self.steps * self.step_depth)

    @cached_property
    def efficiency(self) -> Any:
        """Useful share of the arithmetic."""
        return self.efficiency_m * self.efficiency_n * self.efficiency_k

    @cached_property
    def program_steps(self) -> Any:
        """Steps of the longest program."""
        return ceil_div(self.steps, self.k.split_k)

    @cached_property
    def slots(self) -> Any:
        """Programs of a full wave."""
        return self.arch.compute_units * self.resident

    @cached_property
    def waves(self) -> Any:
        """Waves, as a fraction."""
        return self.programs / self.slots

    @cached_property
    def wave_efficiency(self) -> Any:
        """Useful share of the waves' slots."""
        return self.waves / np.ceil(self.waves)

    @cached_property
    def unit_efficiency(self) -> Any:
        """Average load of a compute unit / load of the busiest."""
        each = self.programs / self.arch.compute_units
        return each / np.ceil(each)

    @cached_property
    def fill_efficiency(self) -> Any:
        """Useful share of a program's time when its pipeline fills and drains once."""
        return self.program_steps / (self.program_steps + self.k.num_stages - 1.0)

    @cached_property
    def a_traffic(self) -> Any:
        """Bytes of the operand along M that all programs load, masked ones left out."""
        g = self.gemm
        passes = np.where(self.depth, g.n, self.tiles_n)
        return 1.0 * g.m * g.k * g.batch * passes * operand_bytes(self.dtype)

    @cached_property
    def b_traffic(self) -> Any:
        """Bytes of the operand along N that all programs load, masked ones left out."""
        g = self.gemm
        return 1.0 * g.n * g.k * g.batch * self.tiles_m * operand_bytes(self.dtype)

    @cached_property
    def traffic(self) -> Any:
        """Bytes that all programs load and store."""
        return self.a_traffic + self.b_traffic + self.result_bytes + self.workspace_traffic

    @cached_property
    def result_bytes(self) -> Any:
        """Bytes of the written tensor."""
        return 1.0 * self.result_elements * result_bytes(self.dtype)

    @cached_property
    def workspace_bytes(self) -> Any:
        """Partial sums of a split-K launch; 0 without."""
        return np.where(self.k.split_k > 1, 1.0 * self.k.split_k * self.result_elements * WORKSPACE_BYTES, 0.0)

    @cached_property
    def workspace_traffic(self) -> Any:
        """Partial sums are written once and read once."""
        return 2.0 * self.workspace_bytes

    @cached_property
    def wave_rows(self) -> Any:
        """Row tiles that a wave touches: programs go down `group_m` rows, then along the columns."""
        together = np.minimum(self.slots, self.tiles_m * self.tiles_n)
        return np.clip(together / self.tiles_n, np.minimum(self.k.group_m, self.tiles_m), self.tiles_m)

    @cached_property
    def wave_cols(self) -> Any:
        """Column tiles that a wave touches."""
        together = np.minimum(self.slots, self.tiles_m * self.tiles_n)
        return np.clip(together / self.wave_rows, 1.0, self.tiles_n)

    @cached_property
    def wave_reuse(self) -> Any:
        """Operand bytes that a wave's programs load / distinct ones among them: what L2 can serve."""
        k = self.k
        distinct = self.wave_rows * k.tile_m + self.wave_cols * k.tile_n
        return self.wave_rows * self.wave_cols * (k.tile_m + k.tile_n) / distinct

    @cached_property
    def wave_bytes(self) -> Any:
        """Distinct operand bytes that a wave's programs walk over all of K."""
        k = self.k
        distinct = self.wave_rows * k.tile_m + self.wave_cols * k.tile_n
        return distinct * self.program_steps * self.step_depth * operand_bytes(self.dtype)

    # ---- the grid as launched ---------------------------------------------------------------------------------------

    @property
    def grid_programs(self) -> Any:
        """Programs that the launch really has; ops override it where their kernels cut the product otherwise."""
        return self.programs

    @property
    def grid_steps(self) -> Any:
        """Steps of an average program of it."""
        return self.program_steps

    @property
    def longest_steps(self) -> Any:
        """Steps of its longest program."""
        return self.program_steps

    @cached_property
    def grid_resident(self) -> Any:
        """Programs that a compute unit holds; a persistent one has it for itself."""
        persistent = (self.k.pipeline == "persistent") | (self.setting("persistent") > 0)
        return np.where(persistent, 1.0, self.resident)

    @cached_property
    def grid_waves(self) -> Any:
        """Waves, as a fraction."""
        return self.grid_programs / (self.arch.compute_units * self.grid_resident)

    @cached_property
    def busy_programs(self) -> Any:
        """Programs that the busiest compute unit works off."""
        full = np.floor(self.grid_waves)
        rest = self.grid_programs - full * self.arch.compute_units * self.grid_resident
        return full * self.grid_resident + np.ceil(rest / self.arch.compute_units)

    @cached_property
    def busy_steps(self) -> Any:
        """Steps of those programs together."""
        return self.busy_programs * self.grid_steps

    @cached_property
    def latency_steps(self) -> Any:
        """Steps that follow one another, as programs of a wave run side by side."""
        return np.ceil(self.grid_waves) * self.longest_steps

    # ---- estimate ---------------------------------------------------------------------------------------------------

    def _wave_clocks(self, resident: Any) -> Any:
        """Clocks of a wave with this many programs on the busiest unit."""
        shared = resident * np.maximum(self.step_compute_clocks, self.step_load_clocks)
        step = np.maximum(shared, self.step_latency_clocks)
        store = self.tile_area * np.where(self.k.split_k > 1, WORKSPACE_BYTES, result_bytes(self.dtype))
        return self.program_steps * step + 2.0 * LATENCY_CLOCKS + resident * store / UNIT_BYTES_PER_CLOCK

    @cached_property
    def compute_clocks(self) -> Any:
        """Arithmetic alone, padding included, on the busiest compute unit."""
        each = np.ceil(self.programs / self.arch.compute_units)
        return each * self.program_steps * self.step_compute_clocks

    @cached_property
    def load_clocks(self) -> Any:
        """Loads from L2 alone, on the busiest compute unit."""
        each = np.ceil(self.programs / self.arch.compute_units)
        return each * self.program_steps * self.step_load_clocks

    @cached_property
    def launch_clocks(self) -> Any:
        """The launch by the pipeline model: full waves, the last, partial sums, launches; at least memory's time."""
        full = np.floor(self.waves)
        rest = self.programs - full * self.slots
        last = np.ceil(rest / self.arch.compute_units)
        grid = full * self._wave_clocks(self.resident) + np.where(rest > 0, self._wave_clocks(last), 0.0)
        split = self.k.split_k > 1
        memory = self.dram_clocks + self.workspace_traffic / self._dram_bytes_per_clock
        return np.maximum(grid, memory) + LAUNCH_CLOCKS * np.where(split, 2.0, 1.0)

    @cached_property
    def estimated_efficiency(self) -> Any:
        """Least possible time / estimated time."""
        return self.roofline_clocks / self.launch_clocks


# Costs of a launch on its busiest compute unit, in clocks up to a factor: :mod:`tilewise.features.estimate` finds the
# factors from measurements, one set for each compiled program.
TILE_COSTS = (
    Term("arithmetic", "products of tiles", lambda i: i.busy_steps * i.step_compute_clocks),
    Term("loads", "operand bytes from L2", lambda i: i.busy_steps * i.step_load_clocks / i.reuse),
    Term("latency", "steps one after another", lambda i: i.latency_steps * LATENCY_CLOCKS),
    Term("staged_latency", "steps, as far as stages leave them uncovered", lambda i: (
        i.latency_steps * i.step_latency_clocks
    )),
    Term("elements", "operand elements", lambda i: i.busy_steps * i.step_elements / i.reuse / FMA_LANES),
    Term("addresses", "addresses and masks of A", lambda i: (
        i.busy_steps * i.k.tile_m * i.step_depth / i.reuse / FMA_LANES
    )),
    Term("rows", "rows and columns addressed", lambda i: i.busy_steps * (i.k.tile_m + i.k.tile_n) / FMA_LANES),
    Term("results", "results stored", lambda i: i.busy_programs * i.tile_area / FMA_LANES),
    Term("result_bytes", "bytes of results stored", lambda i: (
        i.busy_programs * i.tile_area * np.where(i.k.split_k > 1, WORKSPACE_BYTES, result_bytes(i.dtype))
        / UNIT_BYTES_PER_CLOCK
    )),
    Term("waves", "pipelines filled and drained", lambda i: np.ceil(i.grid_waves) * LATENCY_CLOCKS),
    Term("programs", "programs begun", lambda i: i.busy_programs * LATENCY_CLOCKS),
    Term("memory", "fewest bytes from memory", lambda i: i.dram_clocks),
    Term("traffic", "bytes through L2", lambda i: i.traffic / (i.arch.compute_units * UNIT_BYTES_PER_CLOCK)),
    Term("workspace", "bytes of partial sums", lambda i: (
        i.workspace_traffic / (i.arch.compute_units * UNIT_BYTES_PER_CLOCK)
    )),
    Term("launch", "one launch", lambda i: LAUNCH_CLOCKS),
    Term("second_launch", "another where shares are added", lambda i: np.where(i.k.split_k > 1, LAUNCH_CLOCKS, 0)),
)  # fmt: skip

# What the costs' sum misses depends on these, differently for each kernel.
TILE_DRIVERS = (
    Term("m", "log2 of the rows", lambda i: log2(i.gemm.m)),
    Term("n", "log2 of the columns", lambda i: log2(i.gemm.n)),
    Term("k", "log2 of the depth", lambda i: log2(i.gemm.k)),
    Term("efficiency_k", "useful share of the steps along K", lambda i: i.efficiency_k),
    Term("efficiency_n", "useful share of the tiles along N", lambda i: i.efficiency_n),
    Term("wave_efficiency", "useful share of the waves' slots", lambda i: i.grid_waves / np.ceil(i.grid_waves)),
    Term("waves", "waves, at most 4", lambda i: np.minimum(i.grid_waves, 4.0)),
    Term("wave_reuse", "log2 of a wave's loads / distinct ones", lambda i: log2(i.wave_reuse)),
    Term("wave_l2", "log2 of a wave's distinct bytes / L2", lambda i: log2(i.wave_bytes / i.arch.l2_bytes)),
    Term("traffic", "log2 of the bytes moved / the fewest", lambda i: log2(i.traffic / i.min_bytes)),
)

HARDWARE_FEATURES = (
    Feature("hw_compute_units", "", "compute units", "hardware", lambda i: i.arch.compute_units),
    Feature("hw_warp_size", "threads", "threads of a warp", "hardware", lambda i: i.arch.warp_size),
    Feature("hw_clock", "MHz", "highest clock", "hardware", lambda i: i.arch.clock_mhz),
    Feature("hw_shared_block", "bytes", "shared memory of a block", "hardware", lambda i: i.arch.shared_memory_bytes),
    Feature(
        "hw_shared_unit", "bytes", "shared memory of a unit", "hardware", lambda i: i.arch.shared_memory_unit_bytes
    ),
    Feature("hw_registers", "", "registers of a compute unit", "hardware", lambda i: i.arch.registers),
    Feature("hw_max_threads", "threads", "threads resident on a unit", "hardware", lambda i: i.arch.max_threads),
    Feature("hw_max_blocks", "", "blocks resident on a unit", "hardware", lambda i: i.arch.max_blocks),
    Feature("hw_l2", "bytes", "L2 cache", "hardware", lambda i: i.arch.l2_bytes),
    Feature("hw_dram_gb_s", "GB/s", "memory bandwidth", "hardware", lambda i: i.arch.dram_gb_s),
    Feature("hw_peak_tflops", "TFLOPS", "peak of the matrix units", "hardware", lambda i: i.arch.peak(i.dtype)),
    Feature("hw_ridge", "FLOP/byte", "intensity where memory and matrix units tie", "hardware", lambda i: i.ridge),
)

KERNEL_FEATURES = (
    Feature("tile_m", "", "rows of a tile", "kernel", lambda i: i.k.tile_m),
    Feature("tile_n", "", "columns of a tile", "kernel", lambda i: i.k.tile_n),
    Feature("tile_k", "", "depth of a step", "kernel", lambda i: i.k.tile_k),
    Feature("num_warps", "warps", "warps of a block", "kernel", lambda i: i.k.num_warps),
    Feature("num_stages", "", "stages of the software pipeline", "kernel", lambda i: i.k.num_stages),
    Feature("group_m", "tiles", "row tiles that share a sweep over the columns", "kernel", lambda i: i.k.group_m),
    Feature("split_k", "", "programs that share a tile", "kernel", lambda i: i.k.split_k),
    Feature("tile_area_log2", "log2", "results of a tile", "kernel", lambda i: log2(i.tile_area)),
    Feature("tile_aspect_log2", "log2", "rows / columns of a tile", "kernel", lambda i: log2(i.k.tile_m / i.k.tile_n)),
    Feature(
        "tile_intensity", "", "tile_m tile_n / (tile_m + tile_n): arithmetic per loaded element", "kernel",
        lambda i: i.tile_area / (i.k.tile_m + i.k.tile_n),
    ),
    Feature("accumulators", "registers", "partial sums a thread holds", "kernel", lambda i: i.accumulators),
    Feature("step_bytes", "bytes", "operands a program loads in a step", "kernel", lambda i: i.step_bytes),
    Feature(
        "step_bytes_thread", "bytes", "operands a thread loads in a step", "kernel", lambda i: i.step_bytes / i.threads
    ),
    Feature(
        "warpgroup", "flag", "warps and rows suffice for warpgroup matrix instructions", "kernel", lambda i: i.warpgroup
    ),
    Feature(
        "step_balance_log2", "log2", "clocks of a step's arithmetic / of its loads", "kernel",
        lambda i: log2(i.step_compute_clocks / i.step_load_clocks),
    ),
)  # fmt: skip


def _setting(name: str, unit: str, meaning: str) -> Feature:
    return Feature(name, unit, meaning, "kernel", lambda i: i.setting(name))


def _setting_is(name: str, value: str, meaning: str) -> Feature:
    return Feature(f"{name}_{value}", "flag", meaning, "kernel", lambda i: i.setting_is(name, value))


CK_FEATURES = (
    *(_setting(f"warp_{x}", "warps", f"warps of a block along {x.upper()}; 0 not told") for x in "mnk"),
    *(_setting(f"warp_tile_{x}", "", f"matrix instruction's size along {x.upper()}; 0 not told") for x in "mnk"),
    *(_setting(f"pad_{x}", "flag", f"sizes that the tile does not divide along {x.upper()}") for x in "mnk"),
    *(_setting(f"vector_{x}", "", f"elements of one access to {x.upper()}; 0 not told") for x in "abc"),
    _setting("persistent", "flag", "one block a compute unit takes tile after tile"),
    _setting("double_smem_buffer", "flag", "two buffers in shared memory"),
    _setting("store_immediate", "flag", "results are stored at once"),
    _setting("ndim", "", "spatial dimensions it is compiled for; 0 for a matrix product"),
    _setting("num_groups_to_merge", "", "groups computed as one; 0 not told"),
    _setting_is("scheduler", "intrawave", "waves of a block load and multiply at once"),
    _setting_is("scheduler", "interwave", "waves of a block take turns"),
    _setting_is("epilogue", "cshuffle", "results go through shared memory"),
)

# A kernel serves the one layout it is compiled for, so these decide nothing; they tell kernels of a pool apart.
GEMM_LAYOUT_FEATURES = tuple(
    _setting_is("gemm_layout", layout, f"compiled for operands stored as {layout}") for layout in LAYOUTS
)


def pipeline_features(names: tuple[str, ...]) -> tuple[Feature, ...]:
    """A flag for each way to walk K."""
    return tuple(_pipeline(name) for name in names)


def _pipeline(name: str) -> Feature:
    return Feature(f"pipeline_{name}", "flag", f"K is walked as `{name}`", "kernel", lambda i: i.pipeline_is(name))


TILE_FEATURES = (
    Feature(
        "registers", "registers", "estimated registers of a thread, as alignment allows", "interaction",
        lambda i: i.registers,
    ),
    Feature(
        "shared_bytes", "bytes", "shared memory of a block, as alignment allows", "interaction",
        lambda i: i.shared_bytes,
    ),
    Feature(
        "shared_share", "", "shared memory of a block / what a block may have", "interaction",
        lambda i: i.shared_bytes / i.arch.shared_memory_bytes,
    ),
    Feature("resident", "blocks", "blocks that a compute unit holds", "interaction", lambda i: i.resident),
    Feature(
        "resident_warps", "warps", "warps that a compute unit holds", "interaction",
        lambda i: i.resident * i.k.num_warps,
    ),
    Feature(
        "bytes_in_flight", "bytes", "loads that a compute unit keeps under way", "interaction",
        lambda i: i.resident * i.step_bytes * np.maximum(i.k.num_stages - 1, 1),
    ),
    Feature("tiles_m_log2", "log2", "tiles along M", "interaction", lambda i: log2(i.tiles_m)),
    Feature("tiles_n_log2", "log2", "tiles along N", "interaction", lambda i: log2(i.tiles_n)),
    Feature("steps_log2", "log2", "steps along all of K", "interaction", lambda i: log2(i.steps)),
    Feature("m_over_tile_log2", "log2", "M / tile_m", "interaction", lambda i: log2(i.gemm.m / i.k.tile_m)),
    Feature("n_over_tile_log2", "log2", "N / tile_n", "interaction", lambda i: log2(i.cols / i.k.tile_n)),
    Feature("efficiency_m", "", "useful share of the tiles along M", "interaction", lambda i: i.efficiency_m),
    Feature("efficiency_n", "", "useful share of the tiles along N", "interaction", lambda i: i.efficiency_n),
    Feature("efficiency_k", "", "useful share of the steps along K", "interaction", lambda i: i.efficiency_k),
    Feature("efficiency", "", "useful share of the arithmetic", "interaction", lambda i: i.efficiency),
    Feature("programs_log2", "log2", "programs of the launch", "interaction", lambda i: log2(i.programs)),
    Feature(
        "programs_per_unit", "", "programs / compute units", "interaction", lambda i: i.programs / i.arch.compute_units
    ),
    Feature("waves", "", "programs / programs that run at once", "interaction", lambda i: i.waves),
    Feature("wave_efficiency", "", "useful share of the waves' slots", "interaction", lambda i: i.wave_efficiency),
    Feature(
        "unit_efficiency", "", "average load of a compute unit / load of the busiest", "interaction",
        lambda i: i.unit_efficiency,
    ),
    Feature(
        "program_steps_log2", "log2", "steps of the longest program", "interaction", lambda i: log2(i.program_steps)
    ),
    Feature(
        "fill_efficiency", "", "useful share of a program's time when its pipeline fills and drains", "interaction",
        lambda i: i.fill_efficiency,
    ),
    Feature(
        "steps_balance", "", "average steps of a split's programs / steps of the longest", "interaction",
        lambda i: i.steps / (i.program_steps * i.k.split_k),
    ),
    Feature(
        "a_traffic_log2", "log2", "loads of the operand along M / its stored bytes", "interaction",
        lambda i: log2(i.a_traffic / i.a_bytes),
    ),
    Feature(
        "b_traffic_log2", "log2", "loads of the operand along N / its stored bytes", "interaction",
        lambda i: log2(i.b_traffic / i.b_bytes),
    ),
    Feature(
        "traffic_log2", "log2", "bytes that all programs load and store / the fewest", "interaction",
        lambda i: log2(i.traffic / i.min_bytes),
    ),
    Feature(
        "traffic_intensity_log2", "log2(FLOP/byte)", "FLOPs / bytes that all programs load and store", "interaction",
        lambda i: log2(i.flops / i.traffic),
    ),
    Feature(
        "workspace_log2", "log2", "1 + bytes of split-K's partial sums / fewest bytes", "interaction",
        lambda i: log2(1.0 + i.workspace_bytes / i.min_bytes),
    ),
    Feature(
        "wave_reuse_log2", "log2", "loads of a wave / distinct ones among them", "interaction",
        lambda i: log2(i.wave_reuse),
    ),
    Feature(
        "wave_l2_log2", "log2", "distinct operand bytes of a wave / L2", "interaction",
        lambda i: log2(i.wave_bytes / i.arch.l2_bytes),
    ),
    Feature(
        "compute_time_log2", "log2", "arithmetic on the busiest unit / least time of the problem", "interaction",
        lambda i: log2(i.compute_clocks / i.roofline_clocks),
    ),
    Feature(
        "load_time_log2", "log2", "loads of the busiest unit / least time of the problem", "interaction",
        lambda i: log2(i.load_clocks / i.roofline_clocks),
    ),
    Feature(
        "latency_time_log2", "log2", "latency that stages leave uncovered / least time of the problem", "interaction",
        lambda i: log2(np.ceil(i.waves) * i.program_steps * i.step_latency_clocks / i.roofline_clocks),
    ),
    Feature(
        "estimated_efficiency_log2", "log2", "least time of the problem / time by the pipeline model", "interaction",
        lambda i: log2(i.estimated_efficiency),
    ),
)  # fmt: skip

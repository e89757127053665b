"""Intermediates of one block of a tiled matrix product: its tile, step and resources, and the problem's bounds.

A launch is a grid of programs (blocks). Each moves along K in steps of `tile_k` and keeps a `tile_m` x `tile_n` tile of
the result. All values are ints, or arrays that broadcast to (rows,).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tilewise.errors import KernelError
from tilewise.features._feature_table import Inputs
from tilewise.kernels import Array, Formulas
from tilewise.kernels.triton import WARPGROUP_ROWS
from tilewise.ops import GemmDims, operand_bytes, result_bytes

WARPGROUP = 4  # warps that issue one warpgroup matrix instruction (Hopper)
FALLBACK_RATE = 0.6  # share of the peak that the older instructions reach, which smaller tiles fall back to
# 32-bit registers of a thread besides its sums, fitted to ptxas's reports for the pools' kernels on sm90.
DESCRIBED_REGISTERS = 26  # loop state, where descriptors keep the addresses
BASE_REGISTERS = 40  # ... and some addresses
STAGED_REGISTERS = 0.25  # for each element of a step that is copied past them: 8 share an address
LOADED_REGISTERS = 2.75  # ... that is loaded through them: itself, its address, its mask
FILTER_REGISTERS = 45  # without matrix units
FILTER_SUM_REGISTERS = 2.5  # for each sum there, it included
PIXEL_SUM_REGISTERS = 1.3  # ... where a program keeps products of one pixel, and adds as it goes
MAX_REGISTERS = 255
BLOCK_RESERVE_BYTES = 1024  # shared memory that the system takes for each block
FMA_LANES = 128  # fp32 multiply-adds per clock and compute unit outside the matrix units
UNIT_BYTES_PER_CLOCK = 64  # between a compute unit and L2
LATENCY_CLOCKS = 800  # one trip to memory
LAUNCH_CLOCKS = 4000  # a launch, and likewise each further one
WIDEST_LOAD = 16  # bytes
CLASSES_PER_PIPELINE = 64  # numbers for the program classes that an op distinguishes within a pipeline


def log2(x: Any) -> Array:
    """Return the base-2 logarithm as float64; 0 gives that of a tiny number, so that no infinity reaches a model."""
    return np.log2(np.maximum(x, 2.0**-60))


def ceil_div(a: Array, b: Array) -> Array:
    """Return ``ceil(a / b)`` in integers."""
    return -(-a // b)


def alignment(x: Array, most: int = 16) -> Array:
    """Return the largest power of two up to `most` that divides x."""
    return np.minimum(x & -x, most)


class BlockInputs(Inputs):
    """Intermediates of one block. Ops fill in the matrix product and the tensors."""

    op: ClassVar[str]
    least_copy: ClassVar[int]  # bytes of the narrowest asynchronous copy that the op's programs are compiled for

    def check_kernels(self) -> None:
        """Check that the backend has every pipeline for the op.

        Raises:
            KernelError: a pipeline is unknown.
        """
        known = self.pipeline_numbers
        unknown = [name for name in np.unique(self.k.pipeline.astype(str)).tolist() if name not in known]
        if unknown:
            raise KernelError(f"pipeline must be one of {', '.join(known)}, got {', '.join(unknown)}")

    # ---- the op's own answers ---------------------------------------------------------------------------------------

    @property
    def gemm(self) -> GemmDims:
        """The matrix product, one per group."""
        raise NotImplementedError

    @property
    def min_bytes(self) -> Array:
        """Bytes of each tensor once."""
        raise NotImplementedError

    @property
    def a_bytes(self) -> Array:
        """Bytes of the operand along M, as stored."""
        raise NotImplementedError

    @property
    def b_bytes(self) -> Array:
        """Bytes of the operand along N, as stored."""
        raise NotImplementedError

    @property
    def result_elements(self) -> Array:
        """Elements of the written tensor."""
        raise NotImplementedError

    @property
    def contiguous(self) -> Mapping[str, Array]:
        """Neighbouring elements of the operands ``a`` (along M) and ``b`` (along N) in memory."""
        raise NotImplementedError

    @property
    def alignment_class(self) -> Array:
        """Number of the row's program among those of its pipeline, below :data:`CLASSES_PER_PIPELINE`."""
        raise NotImplementedError

    @property
    def filter_sum_registers(self) -> float:
        """Registers for each sum of a kernel without matrix units."""
        return FILTER_SUM_REGISTERS

    # ---- problem ----------------------------------------------------------------------------------------------------

    @cached_property
    def intensity(self) -> Array:
        """FLOP/byte at the fewest bytes."""
        return self.flops / self.min_bytes

    @cached_property
    def ridge(self) -> float:
        """FLOP/byte where memory and matrix units take equally long."""
        return self.arch.peak(self.dtype) * 1e3 / self.arch.dram_gb_s

    @cached_property
    def dram_clocks(self) -> Array:
        """Clocks to move the fewest bytes."""
        return self.min_bytes / self._dram_bytes_per_clock

    @cached_property
    def roofline_clocks(self) -> Array:
        """Least clocks that the problem can take, whatever the kernel."""
        compute = self.flops / (self._flops_per_clock * self.arch.compute_units)
        return np.maximum(compute, self.dram_clocks) + LAUNCH_CLOCKS

    @property
    def chiplets(self) -> int:
        """Dies with compute units, each with an L2 of its own; 1 where the profile states none."""
        return max(self.arch.chiplets, 1)

    @property
    def last_cache_bytes(self) -> int:
        """Bytes of the last cache before memory, over all chiplets."""
        return self.arch.l3_bytes or self.arch.l2_bytes * self.chiplets

    @property
    def _dram_bytes_per_clock(self) -> float:
        return self.arch.dram_gb_s * 1e3 / self.arch.clock_mhz

    @property
    def _flops_per_clock(self) -> float:
        """FLOPs per clock of the matrix units of one compute unit."""
        return self.arch.peak(self.dtype) * 1e6 / (self.arch.clock_mhz * self.arch.compute_units)

    # ---- kernel -----------------------------------------------------------------------------------------------------

    def pipeline_is(self, name: str) -> Array:
        """Return 1.0 where the kernel's pipeline has this name, else 0.0."""
        return (self.k.pipeline == name).astype(np.float64)

    @cached_property
    def pipeline_numbers(self) -> Mapping[str, int]:
        """Number of each pipeline of the backend for the op."""
        return {} if self.backend is None else self.backend.pipelines(self.op)

    @cached_property
    def pipeline_number(self) -> npt.NDArray[np.int64]:
        """Number of each kernel's pipeline, or of a candidate that is known by name."""
        names, place = np.unique(self.k.pipeline.astype(str), return_inverse=True)
        numbers: npt.NDArray[np.int64] = np.array([self.pipeline_numbers[name] for name in names.tolist()])[place]
        return numbers

    @cached_property
    def formulas(self) -> tuple[Formulas, ...]:
        """The intermediates that pipelines replace."""
        return () if self.backend is None else self.backend.formulas()

    @cached_property
    def program_class(self) -> npt.NDArray[np.int64]:
        """Number of the compiled program that serves the row: (rows,). Costs differ between programs by factors."""
        program = self.alignment_class
        for formulas in self.formulas:
            program = formulas.program(self, program)
        classes = self.pipeline_number * CLASSES_PER_PIPELINE + program
        return np.broadcast_to(classes, (self.n_rows,)).astype(np.int64)

    @cached_property
    def direct(self) -> npt.NDArray[np.bool_]:
        """Flag of the kernels that filter without matrix units; groups are columns then, not a grid dimension."""
        return ~self.traits.matrix_units

    @cached_property
    def step_k(self) -> Array:
        """Length of K that a step takes; one filter tap without matrix units."""
        return np.where(self.direct, 1, self.k.tile_k)

    @cached_property
    def threads(self) -> Array:
        """Threads of a block."""
        return self.k.num_warps * self.arch.warp_size

    @cached_property
    def tile_area(self) -> Array:
        """Results that a program computes."""
        return self.k.tile_m * self.k.tile_n

    @cached_property
    def accumulators(self) -> Array:
        """Partial sums that a thread holds."""
        return self.k.tile_m * self.k.tile_n // (self.k.num_warps * self.arch.warp_size)

    @cached_property
    def step_elements(self) -> Array:
        """Operand elements that a program loads in a step."""
        matrix = (self.k.tile_m + self.k.tile_n) * self.k.tile_k
        return np.where(self.direct, self.tile_area + self.k.tile_n, matrix)

    @cached_property
    def step_bytes(self) -> Array:
        """Operand bytes that a program loads in a step."""
        return self.step_elements * operand_bytes(self.dtype)

    def staged(self, matrix: str) -> Array:
        """Return where operand ``a`` or ``b`` goes to shared memory ahead of its use, not through registers.

        Triton's asynchronous copies count, which neighbouring elements have to fill.
        """
        return self.traits.staged | self.fills(matrix, self.least_copy)

    def fills(self, matrix: str, size: int) -> Array:
        """Return whether neighbouring elements of operand ``a`` or ``b`` fill loads of so many bytes."""
        return self.contiguous[matrix] % (size // operand_bytes(self.dtype)) == 0

    @cached_property
    def buffers(self) -> Array:
        """Steps of a staged operand in shared memory: all stages, minus one where units read from registers."""
        whole = self.warpgroup | self.traits.all_stages_shared
        return np.where(whole, self.k.num_stages, np.maximum(self.k.num_stages - 1, 1))

    @cached_property
    def shared_bytes(self) -> Array:
        """Shared memory of a block, as compiled for the problem."""
        k = self.k
        rows = k.tile_m * np.where(self.staged("a"), self.buffers, 1)
        cols = k.tile_n * np.where(self.staged("b"), self.buffers, 1)
        result = self.traits.stores_tiles * self.tile_area * result_bytes(self.dtype)
        return np.where(self.direct, 0, (rows + cols) * k.tile_k * operand_bytes(self.dtype) + result)

    @cached_property
    def registers(self) -> Array:
        """Registers that a thread takes, estimated: sums, addresses, and loads through registers."""
        k, per_element = self.k, {m: np.where(self.staged(m), STAGED_REGISTERS, LOADED_REGISTERS) for m in "ab"}
        step = (k.tile_m * per_element["a"] + k.tile_n * per_element["b"]) * k.tile_k / self.threads
        matrix = self.accumulators + np.where(self.traits.described, DESCRIBED_REGISTERS, BASE_REGISTERS + step)
        taken = np.where(self.direct, FILTER_REGISTERS + self.filter_sum_registers * self.accumulators, matrix)
        return np.minimum(taken, MAX_REGISTERS)

    @cached_property
    def resident_by_memory(self) -> Array:
        """Blocks whose shared memory fits a compute unit, at least 1."""
        return np.maximum(self.arch.shared_memory_unit_bytes // (self.shared_bytes + BLOCK_RESERVE_BYTES), 1)

    @cached_property
    def resident_by_registers(self) -> Array:
        """Blocks whose registers, a multiple of 8 per thread, fit a compute unit, at least 1."""
        each = np.ceil(self.registers / 8) * 8 * self.threads
        return np.maximum(np.floor(self.arch.registers / each), 1.0)

    @cached_property
    def resident(self) -> Array:
        """Blocks that a compute unit holds: the least of four limits, at least 1."""
        limit = np.minimum(self.arch.max_threads // self.threads, self.arch.max_blocks)
        return np.maximum(np.minimum(np.minimum(self.resident_by_memory, self.resident_by_registers), limit), 1.0)

    @cached_property
    def warpgroup(self) -> Array:
        """Flag of the kernels whose warps and rows suffice for warpgroup instructions."""
        return (self.k.num_warps % WARPGROUP == 0) & (self.k.tile_m >= WARPGROUP_ROWS) & ~self.direct

    @cached_property
    def step_compute_clocks(self) -> Array:
        """Clocks of a compute unit's arithmetic for one program's step."""
        rate = np.where(self.warpgroup, self._flops_per_clock, self._flops_per_clock * FALLBACK_RATE)
        rate = np.where(self.direct, 2.0 * FMA_LANES, rate)
        return 2.0 * self.tile_area * self.step_k / rate

    @cached_property
    def step_load_clocks(self) -> Array:
        """Clocks of a compute unit's path to L2 for one program's step."""
        return self.step_bytes / UNIT_BYTES_PER_CLOCK

    @cached_property
    def step_latency_clocks(self) -> Array:
        """Least clocks of a step by latency alone: stages hide it, except for the one in use."""
        return LATENCY_CLOCKS / np.maximum(self.k.num_stages - 1.0, 1.0)

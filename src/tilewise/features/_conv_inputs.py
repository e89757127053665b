"""Intermediates of grouped convolution: implicit matrix products, one per group.

The pipelines (see :mod:`tilewise.kernels.triton.pipelines`) differ in how they pad K, tiles and steps. They
state their own intermediates as formulas. Kernels without matrix units take the channels of all groups as columns.
"""

from __future__ import annotations

from functools import cached_property, reduce
from operator import or_

import numpy as np

from tilewise.features._block_inputs import PIXEL_SUM_REGISTERS, UNIT_BYTES_PER_CLOCK, WIDEST_LOAD, ceil_div
from tilewise.features._tile_inputs import TileInputs
from tilewise.kernels import Array, Formulas, unchanged
from tilewise.kernels.triton import load_widths, tapwise_columns
from tilewise.ops import (
    GemmDims,
    OutputSizes,
    conv_flops,
    conv_min_bytes,
    implicit_gemm,
    input_elements,
    operand_bytes,
    output_elements,
    output_sizes,
    result_bytes,
    weight_elements,
)


class ConvInputs(TileInputs):
    """Intermediates of grouped convolution; see :class:`TileInputs`."""

    op = "grouped_conv"
    least_copy = 4

    @cached_property
    def out(self) -> OutputSizes:
        """Spatial output sizes."""
        return output_sizes(self.p)

    @cached_property
    def gemm(self) -> GemmDims:
        """The matrix product of one group."""
        return implicit_gemm(self.p, self.variant)

    @cached_property
    def flops(self) -> Array:
        """Useful floating-point operations."""
        return conv_flops(self.p)

    @cached_property
    def min_bytes(self) -> Array:
        """Bytes of each tensor once."""
        return conv_min_bytes(self.p, self.dtype, self.variant)

    @cached_property
    def tensors(self) -> tuple[Array, Array, Array]:
        """Elements of the operand along M, the operand along N, and the result."""
        x, w, y = (
            input_elements(self.p),
            weight_elements(self.p),
            output_elements(self.p),
        )
        return {"forward": (x, w, y), "bwd_data": (y, w, x), "bwd_weight": (y, x, w)}[self.variant]

    @property
    def a_bytes(self) -> Array:
        """Bytes of the operand along M, as stored."""
        return self.tensors[0] * operand_bytes(self.dtype)

    @property
    def b_bytes(self) -> Array:
        """Bytes of the operand along N, as stored."""
        return self.tensors[1] * operand_bytes(self.dtype)

    @property
    def result_elements(self) -> Array:
        """Elements of the written tensor."""
        return self.tensors[2]

    @cached_property
    def taps(self) -> Array:
        """Filter taps."""
        return self.p.Z * self.p.Y * self.p.X

    @cached_property
    def channels(self) -> Array:
        """Neighbouring elements of K: channels of a group under one tap (pixels, for bwd_weight)."""
        return self.gemm.k if self.variant == "bwd_weight" else self.gemm.k // self.taps

    @property
    def common_steps(self) -> Array:
        """Steps along all of K before the formulas of pipelines: tapwise ones pad each tap's channels."""
        tap_steps = self.gemm.k // self.channels * ceil_div(self.channels, self.k.tile_k)
        return np.where(self.traits.tapwise, tap_steps, ceil_div(self.gemm.k, self.step_k))

    # ---- several groups in a tile: each property is the common one where no kernel merges groups --------------------

    @cached_property
    def merging(self) -> tuple[Formulas, ...]:
        """Formulas of the pipelines that merge groups, if the rows have such kernels."""
        return tuple(f for f in self.formulas if f.merged is not unchanged and np.any(self.k.pipeline == f.name))

    @cached_property
    def merged(self) -> Array:
        """Groups that a tile computes at once."""
        merged: Array = 1
        for formulas in self.merging:
            merged = formulas.merged(self, merged)
        return merged

    def together(self, size: Array) -> Array:
        """Return a size of one group for all merged groups of a tile."""
        return size * self.merged if self.merging else size

    @property
    def products(self) -> Array:
        """Matrix products whose tiles a launch computes: one per group, or for each set of merged groups."""
        return ceil_div(self.gemm.batch, self.merged) if self.merging else self.gemm.batch

    @cached_property
    def tiles_n(self) -> Array:
        """Tiles along N (of one product)."""
        tiles = ceil_div(self.together(self.cols), self.k.tile_n)
        for formulas in self.formulas:
            tiles = formulas.tiles_n(self, tiles)
        return tiles

    @cached_property
    def efficiency_n(self) -> Array:
        """Useful share of the tiles along N."""
        share = self.cols / (self.tiles_n * self.k.tile_n)
        return np.where(self.merged > 1, share * self.gemm.batch / self.products, share) if self.merging else share

    # ---- the grid as launched ---------------------------------------------------------------------------------------

    @cached_property
    def residue_classes(self) -> Array:
        """Products of a launch: one in bwd_data for each residue of the input pixels modulo the stride."""
        p = self.p
        return p.stride_d * p.stride_h * p.stride_w if self.variant == "bwd_data" else p.stride_d * 0 + 1

    @cached_property
    def class_taps(self) -> Array:
        """The most taps that reach one residue class."""
        p, taps = self.p, 1
        axes = ((p.Z, p.stride_d, p.dilation_d), (p.Y, p.stride_h, p.dilation_h), (p.X, p.stride_w, p.dilation_w))
        for size, stride, dilation in axes:
            taps = taps * ceil_div(size, stride // np.gcd(stride, dilation))
        return taps

    @cached_property
    def grid_programs(self) -> Array:
        """Programs of the launch, residue classes and tapwise columns counted."""
        k = self.k
        tiles_m, tiles_n, groups = self.tiles_m, self.tiles_n, np.where(self.direct, 1, self.products)
        if self.variant == "bwd_data":
            by_class = ceil_div(ceil_div(self.gemm.m, self.residue_classes), k.tile_m) * self.residue_classes
            tiles_m = np.where(self._counts_classes, tiles_m, by_class)
        if self.variant == "bwd_weight":
            tiles_n = np.where(self.traits.tapwise, tapwise_columns(k, self.p) // k.tile_n, tiles_n)
            filters = self.taps // np.where(self.traits.filter_rows, self.p.X, 1)
            tiles_n = np.where(self.direct, filters * ceil_div(self.p.K, k.tile_n), tiles_n)
            tiles_m = np.where(self.direct, 1, tiles_m)
        return tiles_m * tiles_n * groups * k.split_k

    @cached_property
    def _counts_classes(self) -> Array:
        """Flag of the kernels whose pipeline counts the tiles along M of all residue classes itself."""
        own = (self.k.pipeline == f.name for f in self.formulas if f.tiles_m is not unchanged)
        return reduce(or_, own, np.zeros(np.shape(self.k.pipeline), dtype=bool))

    @cached_property
    def grid_steps(self) -> Array:
        """Steps of an average program: a residue class takes its share of the taps."""
        if self.variant != "bwd_weight":
            return np.maximum(self.steps / self.residue_classes / self.k.split_k, 1.0)
        steps = np.where(self.direct, ceil_div(self.gemm.k, self.k.tile_m), self.steps)
        for formulas in self.formulas:
            steps = formulas.pixel_steps(self, steps)
        return ceil_div(steps, self.k.split_k)

    @cached_property
    def longest_steps(self) -> Array:
        """Steps of the longest program."""
        if self.variant != "bwd_data":
            return self.grid_steps
        per_tap = self.steps / self.taps
        return np.maximum(np.minimum(self.class_taps * per_tap, self.steps) / self.k.split_k, 1.0)

    @property
    def filter_sum_registers(self) -> float:
        """Registers for each sum of a kernel without matrix units."""
        return PIXEL_SUM_REGISTERS if self.variant == "bwd_weight" else super().filter_sum_registers

    @cached_property
    def contiguous(self) -> dict[str, Array]:
        """Neighbouring elements of the operands: the channels of a group, the last axis of images and filters."""
        inputs, outputs = (self.neighbours(channels) for channels in (self.p.C, self.p.K))
        return {
            "forward": {"a": inputs, "b": self.p.C // self.p.G},
            "bwd_data": {"a": outputs, "b": self.p.C // self.p.G},
            "bwd_weight": {"a": outputs, "b": inputs},
        }[self.variant]

    def neighbours(self, channels: Array) -> Array:
        """Return the channels of a tile's groups, as far as those of every pixel begin at multiples of as many."""
        size = channels // self.p.G
        return np.gcd(size * self.merged, channels) if self.merging else size

    @cached_property
    def alignment_class(self) -> Array:
        """Number of the compiler's hints, which are the widest loads that divide the channel counts.

        The pipeline ``strip`` also has a program per filter width, which is left out: the cost model's terms cover it.
        """
        p, direct = self.p, self.direct
        cg, kg = p.C // p.G, p.K // p.G
        several = direct & (kg > 1)  # channels are not neighbours then
        return 16 * several + load_widths(np.where(direct, p.C, cg), np.where(direct, p.K, kg))

    def repeated_clocks(self, name: str) -> Array:
        """Return the clocks of the one slice of L2 that serves all repeated reads of the last row, or column."""
        tiles_m, tiles_n = self.tiles_m, self.tiles_n
        if name == "rows":
            beyond = tiles_n * (tiles_m * self.k.tile_m - self.gemm.m)
        else:
            beyond = tiles_m * (tiles_n * self.k.tile_n - self.cols)
        run = self.gemm.k * operand_bytes(self.dtype)
        return np.where(self.traits.repeats_edges, 1.0 * self.gemm.batch * beyond * run / UNIT_BYTES_PER_CLOCK, 0.0)

    def run_aligned(self, elements: int) -> Array:
        """Return 1.0 where a pixel's channels begin at multiples of exactly so many elements, else 0.0."""
        aligned = self.channels & -self.channels
        widest = WIDEST_LOAD // 2  # elements of 16 bits
        return (np.clip(aligned, widest, 8 * widest) == elements) * 1.0

    @cached_property
    def run_bytes(self) -> Array:
        """Contiguous bytes that a step reads: channels of one pixel (columns, without matrix units)."""
        inner = self.channels if self.variant == "bwd_weight" else self.together(self.channels)
        matrix = np.minimum(inner, self.k.tile_k)
        filters = np.minimum(self.cols, self.k.tile_n)
        return np.where(self.direct, filters, matrix) * operand_bytes(self.dtype)

    @cached_property
    def store_bytes(self) -> Array:
        """Contiguous bytes that a program writes."""
        cols = self.cols if self.variant == "bwd_weight" else self.together(self.cols)
        return np.minimum(cols, self.k.tile_n) * result_bytes(self.dtype)

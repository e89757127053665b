"""Features of grouped convolution: implicit matrix products, one per group.

The walks of K differ (see :mod:`tilewise.kernels.rules`): ``taps`` rounds the channels of each filter tap up to
`tile_k`, ``flat`` and ``point`` round once over all taps. ``depth``, ``lanes`` and ``strip`` use no matrix units, take
the channels of all groups as columns and one tap a step; ``strip`` rounds each row of pixels up to `tile_k`.
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import numpy as np

from tilewise.errors import KernelError
from tilewise.features._base import Feature, FeatureTable, Term
from tilewise.features._tiles import (
    CK_FEATURES,
    CK_PIPELINES,
    HARDWARE_FEATURES,
    KERNEL_FEATURES,
    PIXEL_SUM_REGISTERS,
    SECTOR_BYTES,
    TILE_COSTS,
    TILE_DRIVERS,
    TILE_FEATURES,
    UNIT_BYTES_PER_CLOCK,
    VECTOR,
    TileInputs,
    alignment,
    ceil_div,
    log2,
    pipeline_features,
)
from tilewise.kernels.boxes import covering_pixels, tapwise_columns
from tilewise.kernels.rules import CONV_PIPELINES, PIXEL_PIPELINES, strip_columns
from tilewise.ops import GemmDims
from tilewise.ops import grouped_conv as op
from tilewise.ops.dtypes import operand_bytes, result_bytes


class ConvInputs(TileInputs):
    """Intermediates of grouped convolution; see :class:`TileInputs`."""

    def check_kernels(self) -> None:
        """Check that every kernel walks K in a way that the formulas know.

        Raises:
            KernelError: a pipeline is unknown.
        """
        known = CK_PIPELINES if hasattr(self.k, "warp_m") else CONV_PIPELINES + PIXEL_PIPELINES
        unknown = sorted(set(self.k.pipeline.astype(str).tolist()) - set(known))
        if unknown:
            raise KernelError(f"pipeline must be one of {', '.join(known)}, got {', '.join(unknown)}")

    @cached_property
    def out(self) -> op.OutputSizes:
        """Spatial output sizes."""
        return op.output_sizes(self.p)

    @cached_property
    def gemm(self) -> GemmDims:
        """The matrix product of one group."""
        return op.implicit_gemm(self.p, self.variant)

    @cached_property
    def flops(self) -> Any:
        """Useful floating-point operations."""
        return op.flops(self.p)

    @cached_property
    def min_bytes(self) -> Any:
        """Each tensor once."""
        return op.min_bytes(self.p, self.dtype, self.variant)

    @cached_property
    def tensors(self) -> tuple[Any, Any, Any]:
        """Elements of the operand along M, the operand along N, and the result."""
        x, w, y = op.input_elements(self.p), op.weight_elements(self.p), op.output_elements(self.p)
        return {"forward": (x, w, y), "bwd_data": (y, w, x), "bwd_weight": (y, x, w)}[self.variant]

    @property
    def a_bytes(self) -> Any:
        """The operand along M, as stored."""
        return self.tensors[0] * operand_bytes(self.dtype)

    @property
    def b_bytes(self) -> Any:
        """The operand along N, as stored."""
        return self.tensors[1] * operand_bytes(self.dtype)

    @property
    def result_elements(self) -> Any:
        """Elements of the written tensor."""
        return self.tensors[2]

    @cached_property
    def taps(self) -> Any:
        """Filter taps."""
        return self.p.Z * self.p.Y * self.p.X

    @cached_property
    def channels(self) -> Any:
        """Neighbouring elements of K: channels of a group under one tap (pixels, for bwd_weight)."""
        return self.gemm.k if self.variant == "bwd_weight" else self.gemm.k // self.taps

    @cached_property
    def steps(self) -> Any:
        """Steps along all of K."""
        tap_steps = self.gemm.k // self.channels * ceil_div(self.channels, self.k.tile_k)
        tapwise = (self.k.pipeline == "taps") | self.boxed
        steps = np.where(tapwise, tap_steps, ceil_div(self.gemm.k, self.step_depth))
        if self.variant == "bwd_weight" and self.boxed.any():
            steps = np.where(self.boxed, covering_pixels(self.p, self.variant, self.k.tile_k) // self.k.tile_k, steps)
        return steps

    @cached_property
    def boxed(self) -> Any:
        """Where the kernel loads its pixels as boxes."""
        return self.k.pipeline == "box"

    @cached_property
    def strips(self) -> Any:
        """Where a thread keeps strips of pixels."""
        return self.k.pipeline == "strip"

    @cached_property
    def reuse(self) -> Any:
        """See :class:`TileInputs`: a strip loads each column of the image once for all taps of a filter row."""
        if not self.strips.any():
            return 1
        most = self.k.tile_k * self.p.X
        return np.where(self.strips, most / np.minimum(strip_columns(self.k, self.p), most), 1.0)

    @cached_property
    def tiles_m(self) -> Any:
        """Tiles along M; of boxes, those that cover each image (of each residue class), of strips each row."""
        tiles, tile = ceil_div(self.gemm.m, self.k.tile_m), self.k.tile_m
        if self.variant != "bwd_weight" and self.boxed.any():
            pixels = covering_pixels(self.p, self.variant, tile)
            tiles = np.where(self.boxed, self.residue_classes * pixels // tile, tiles)
        if self.variant != "bwd_weight" and self.strips.any():
            row = self.out.Wo if self.variant == "forward" else self.p.Wi
            pixels = self.gemm.m // row * ceil_div(row, self.k.tile_k) * self.k.tile_k
            tiles = np.where(self.strips, ceil_div(pixels, tile), tiles)
        return tiles

    # ---- the grid as launched ---------------------------------------------------------------------------------------

    @cached_property
    def residue_classes(self) -> Any:
        """Products of a launch: bwd_data has one for each residue of the input pixels modulo the stride."""
        p = self.p
        return p.stride_d * p.stride_h * p.stride_w if self.variant == "bwd_data" else p.stride_d * 0 + 1

    @cached_property
    def class_taps(self) -> Any:
        """The most taps that reach one residue class."""
        taps = 1
        for size, axis in ((self.p.Z, "d"), (self.p.Y, "h"), (self.p.X, "w")):
            stride, dilation = getattr(self.p, f"stride_{axis}"), getattr(self.p, f"dilation_{axis}")
            taps = taps * ceil_div(size, stride // np.gcd(stride, dilation))
        return taps

    @cached_property
    def grid_programs(self) -> Any:
        """Programs of the launch, residue classes and tap-wise columns counted."""
        k, walk = self.k, self.k.pipeline
        tiles_m, tiles_n, groups = self.tiles_m, self.tiles_n, np.where(self.depth, 1, self.gemm.batch)
        if self.variant == "bwd_data":
            by_class = ceil_div(ceil_div(self.gemm.m, self.residue_classes), k.tile_m) * self.residue_classes
            tiles_m = np.where(self.boxed | self.strips, tiles_m, by_class)
        if self.variant == "bwd_weight":
            tapwise = tapwise_columns(k, self.p) // k.tile_n
            tiles_n = np.where((walk == "taps") | self.boxed, tapwise, tiles_n)
            rows = self.taps // np.where(self.strips, self.p.X, 1)
            tiles_n = np.where(self.depth, rows * ceil_div(self.p.K, k.tile_n), tiles_n)
            tiles_m = np.where(self.depth, 1, tiles_m)
        return tiles_m * tiles_n * groups * k.split_k

    @cached_property
    def grid_steps(self) -> Any:
        """Steps of an average program: a residue class walks its share of the taps."""
        if self.variant == "bwd_weight":
            steps = np.where(self.depth, ceil_div(self.gemm.k, self.k.tile_m), self.steps)
            if self.strips.any():  # each is for the taps of a filter row
                strips = ceil_div(self.gemm.k // self.out.Wo * self.k.tile_k, self.k.tile_m)
                strips = strips * ceil_div(self.out.Wo, self.k.tile_k)
                steps = np.where(self.strips, strips * self.p.X, steps)
            return ceil_div(steps, self.k.split_k)
        return np.maximum(self.steps / self.residue_classes / self.k.split_k, 1.0)

    @cached_property
    def longest_steps(self) -> Any:
        """Steps of the longest program."""
        if self.variant != "bwd_data":
            return self.grid_steps
        per_tap = self.steps / self.taps
        return np.maximum(np.minimum(self.class_taps * per_tap, self.steps) / self.k.split_k, 1.0)

    @property
    def filter_sum_registers(self) -> float:
        """See :class:`TileInputs`."""
        return PIXEL_SUM_REGISTERS if self.variant == "bwd_weight" else super().filter_sum_registers

    @cached_property
    def run(self) -> dict[str, Any]:
        """Neighbouring elements of the operands: channels of a group, as images and filters have them last."""
        inputs, outputs = self.p.C // self.p.G, self.p.K // self.p.G
        return {
            "forward": {"a": inputs, "b": inputs},
            "bwd_data": {"a": outputs, "b": inputs},
            "bwd_weight": {"a": outputs, "b": inputs},
        }[self.variant]

    @cached_property
    def alignment_class(self) -> Any:
        """Channel counts that divide by the widest load are hints to the compiler; each set of hints is a program.

        That a strip's are programs for each filter width besides is left out: the terms of the estimate tell it.
        """
        p, depth = self.p, self.depth
        cg, kg = p.C // p.G, p.K // p.G
        inputs = np.where(depth, p.C, cg) % VECTOR == 0
        outputs = np.where(depth, p.K, kg) % VECTOR == 0
        several = depth & (kg > 1)  # channels are not neighbours then
        return 4 * several + 2 * inputs + outputs

    def repeated_clocks(self, name: str) -> Any:
        """Clocks of the one slice of L2 that serves all reads of the last row, or column, again."""
        tiles_m, tiles_n = self.tiles_m, self.tiles_n
        if name == "rows":
            beyond = tiles_n * (tiles_m * self.k.tile_m - self.gemm.m)
        else:
            beyond = tiles_m * (tiles_n * self.k.tile_n - self.cols)
        run = self.gemm.k * operand_bytes(self.dtype)
        return np.where(self.k.pipeline == "point", 1.0 * self.gemm.batch * beyond * run / UNIT_BYTES_PER_CLOCK, 0.0)

    def run_aligned(self, elements: int) -> Any:
        """Whether a pixel's channels begin at a multiple of so many elements and of no more."""
        run = self.channels & -self.channels
        return (np.clip(run, VECTOR, 8 * VECTOR) == elements) * 1.0

    @cached_property
    def run_bytes(self) -> Any:
        """Bytes that a step reads in one piece: channels of one pixel (columns, without matrix units)."""
        matrix = np.minimum(self.channels, self.k.tile_k)
        filters = np.minimum(self.cols, self.k.tile_n)
        return np.where(self.depth, filters, matrix) * operand_bytes(self.dtype)

    @cached_property
    def store_bytes(self) -> Any:
        """Bytes that a program writes in one piece."""
        return np.minimum(self.cols, self.k.tile_n) * result_bytes(self.dtype)


def _sectors(run: Any) -> Any:
    """Useful share of the memory transactions for a piece of this many bytes."""
    return run / (ceil_div(run, SECTOR_BYTES) * SECTOR_BYTES)


def _dimension(name: str, meaning: str) -> Feature:
    return Feature(name, "", meaning, "problem", lambda i: getattr(i.p, name))


_PROBLEM = (
    _dimension("N", "images"),
    _dimension("C", "input channels of all groups"),
    _dimension("K", "output channels of all groups"),
    _dimension("G", "groups"),
    _dimension("Di", "input depth"),
    _dimension("Hi", "input height"),
    _dimension("Wi", "input width"),
    _dimension("Z", "filter depth"),
    _dimension("Y", "filter height"),
    _dimension("X", "filter width"),
    _dimension("stride_d", "stride along the depth"),
    _dimension("stride_h", "stride along the height"),
    _dimension("stride_w", "stride along the width"),
    _dimension("pad_h", "padding along the height"),
    _dimension("pad_w", "padding along the width"),
    _dimension("dilation_h", "dilation along the height"),
    _dimension("dilation_w", "dilation along the width"),
    Feature("Ho", "", "output height", "problem", lambda i: i.out.Ho),
    Feature("Wo", "", "output width", "problem", lambda i: i.out.Wo),
    Feature("taps", "", "filter taps", "problem", lambda i: i.taps),
    Feature("group_channels", "", "input channels of a group", "problem", lambda i: i.p.C // i.p.G),
    Feature("group_filters", "", "output channels of a group", "problem", lambda i: i.p.K // i.p.G),
    Feature(
        "channel_alignment", "", "largest power of two up to 16 that divides a group's input channels", "problem",
        lambda i: alignment(i.p.C // i.p.G),
    ),
    Feature(
        "filter_alignment", "", "largest power of two up to 16 that divides a group's output channels", "problem",
        lambda i: alignment(i.p.K // i.p.G),
    ),
    Feature("gemm_m_log2", "log2", "rows of the implicit matrix product", "problem", lambda i: log2(i.gemm.m)),
    Feature("gemm_n_log2", "log2", "columns of it, of one group", "problem", lambda i: log2(i.gemm.n)),
    Feature("gemm_k_log2", "log2", "its depth, of one group", "problem", lambda i: log2(i.gemm.k)),
    Feature("gemm_mn_log2", "log2", "results over all groups", "problem", lambda i: log2(i.result_elements)),
    Feature("aspect_mn_log2", "log2", "rows / columns", "problem", lambda i: log2(i.gemm.m / i.gemm.n)),
    Feature("aspect_mk_log2", "log2", "rows / depth", "problem", lambda i: log2(i.gemm.m / i.gemm.k)),
    Feature("aspect_nk_log2", "log2", "columns / depth", "problem", lambda i: log2(i.gemm.n / i.gemm.k)),
    Feature("aspect_image_log2", "log2", "input height / width", "problem", lambda i: log2(i.p.Hi / i.p.Wi)),
    Feature("flops_log2", "log2(FLOP)", "floating-point operations", "problem", lambda i: log2(i.flops)),
    Feature("min_bytes_log2", "log2(bytes)", "each tensor once", "problem", lambda i: log2(i.min_bytes)),
    Feature("a_bytes_log2", "log2(bytes)", "the operand along M", "problem", lambda i: log2(i.a_bytes)),
    Feature("b_bytes_log2", "log2(bytes)", "the operand along N", "problem", lambda i: log2(i.b_bytes)),
    Feature("result_bytes_log2", "log2(bytes)", "the written tensor", "problem", lambda i: log2(i.result_bytes)),
    Feature("intensity_log2", "log2(FLOP/byte)", "FLOPs / fewest bytes", "problem", lambda i: log2(i.intensity)),
    Feature("ridge_log2", "log2", "intensity / the hardware's ridge", "problem", lambda i: log2(i.intensity / i.ridge)),
    Feature("l2_log2", "log2", "fewest bytes / L2", "problem", lambda i: log2(i.min_bytes / i.arch.l2_bytes)),
    Feature(
        "overlap_log2", "log2", "elements of the unfolded operand along M / its stored ones", "problem",
        lambda i: log2(i.gemm.m * i.gemm.k * i.gemm.batch / i.tensors[0]),
    ),
    Feature(
        "roofline_log2", "log2(clocks)", "least time by peak and bandwidth", "problem",
        lambda i: log2(i.roofline_clocks),
    ),
    Feature("is_pointwise", "flag", "one tap", "problem", lambda i: i.taps == 1),
    Feature("is_grouped", "flag", "more than one group", "problem", lambda i: i.p.G > 1),
    Feature("is_depthwise", "flag", "one input channel a group", "problem", lambda i: (i.p.G > 1) & (i.p.C == i.p.G)),
    Feature(
        "is_strided", "flag", "a stride above 1", "problem",
        lambda i: (i.p.stride_d > 1) | (i.p.stride_h > 1) | (i.p.stride_w > 1),
    ),
    Feature(
        "is_dilated", "flag", "a dilation above 1", "problem",
        lambda i: (i.p.dilation_d > 1) | (i.p.dilation_h > 1) | (i.p.dilation_w > 1),
    ),
    Feature(
        "is_padded", "flag", "padding on a side", "problem",
        lambda i: (i.p.pad_d > 0) | (i.p.pad_h > 0) | (i.p.pad_w > 0),
    ),
    Feature("is_3d", "flag", "a third spatial dimension", "problem", lambda i: (i.p.Di > 1) | (i.p.Z > 1)),
)  # fmt: skip


_INTERACTION = (
    Feature(
        "channels_over_tile_log2", "log2", "neighbouring elements of K / tile_k", "interaction",
        lambda i: log2(i.channels / i.step_depth),
    ),
    Feature(
        "flat_efficiency_k", "", "useful share of the steps along K if taps were walked as one", "interaction",
        lambda i: i.gemm.k / (ceil_div(i.gemm.k, i.step_depth) * i.step_depth),
    ),
    Feature("run_bytes", "bytes", "what a step reads in one piece", "interaction", lambda i: i.run_bytes),
    Feature(
        "run_efficiency", "", "useful share of the memory transactions for that piece", "interaction",
        lambda i: _sectors(i.run_bytes),
    ),
    Feature("store_bytes", "bytes", "what a program writes in one piece", "interaction", lambda i: i.store_bytes),
    Feature(
        "store_efficiency", "", "useful share of the memory transactions for that piece", "interaction",
        lambda i: _sectors(i.store_bytes),
    ),
)  # fmt: skip

_LAUNCH = (
    Feature(
        "repeated_log2", "log2", "1 + clocks of L2 on repeated rows and columns / least time", "interaction",
        lambda i: log2(1.0 + (i.repeated_clocks("cols") + i.repeated_clocks("rows")) / i.roofline_clocks),
    ),
    Feature(
        "grid_programs_log2", "log2", "programs as launched, residue classes counted", "interaction",
        lambda i: log2(i.grid_programs),
    ),
    Feature(
        "grid_steps_log2", "log2", "steps of an average program as launched", "interaction",
        lambda i: log2(i.grid_steps),
    ),
)  # fmt: skip


def _repeated(name: str, elements: int) -> Term:
    meaning = f"reads of the last of the {name} again, channels aligned to {elements}"
    return Term(f"repeated_{name}_{elements}", meaning, lambda i: i.repeated_clocks(name) * i.run_aligned(elements))


_COSTS = tuple(_repeated(name, elements) for name in ("cols", "rows") for elements in (8, 16, 32, 64))

_DRIVERS = (
    Term("taps", "log2 of the filter taps", lambda i: log2(i.taps)),
    Term("groups", "log2 of the groups", lambda i: log2(i.p.G)),
    Term("stride", "log2 of the pixels of a stride", lambda i: log2(i.p.stride_d * i.p.stride_h * i.p.stride_w)),
    Term("inputs_aligned", "log2 of what divides a group's inputs", lambda i: log2(alignment(i.p.C // i.p.G, 64))),
    Term("outputs_aligned", "log2 of what divides a group's outputs", lambda i: log2(alignment(i.p.K // i.p.G, 64))),
)

TABLE = FeatureTable(
    "grouped_conv",
    (
        *_PROBLEM, *KERNEL_FEATURES, *pipeline_features(CONV_PIPELINES), *TILE_FEATURES, *_INTERACTION,
        *HARDWARE_FEATURES, *_LAUNCH, *CK_FEATURES, *pipeline_features(CK_PIPELINES),
        *pipeline_features(PIXEL_PIPELINES),
    ),
    ConvInputs,
    (*TILE_COSTS, *_COSTS),
    (*TILE_DRIVERS, *_DRIVERS),
)  # fmt: skip

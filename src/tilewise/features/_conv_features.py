"""The features, costs and drivers of grouped convolution; see :class:`tilewise.features._conv_inputs.ConvInputs`."""

from __future__ import annotations

from functools import cache

from tilewise.features._block_inputs import alignment, ceil_div, log2
from tilewise.features._ck_features import CK_FEATURES, DEPTHWISE_FEATURES, STREAMK_FEATURES
from tilewise.features._conv_inputs import ConvInputs
from tilewise.features._feature_table import Feature, FeatureTable, Term
from tilewise.features._tile_features import (
    ARCH_FEATURES,
    HARDWARE_FEATURES,
    KERNEL_FEATURES,
    NAMED_FEATURES,
    TILE_FEATURES,
    pipeline_features,
)
from tilewise.features._tile_terms import TILE_COSTS, TILE_DRIVERS
from tilewise.kernels import Array
from tilewise.kernels.ck import CK_TILE
from tilewise.kernels.triton import pipelines_of
from tilewise.ops import CHANNELS_FIRST

SECTOR_BYTES = 32  # the smallest transaction of the memory system


def _sectors(size: Array) -> Array:
    """Return the useful share of the memory transactions for this many contiguous bytes."""
    return size / (ceil_div(size, SECTOR_BYTES) * SECTOR_BYTES)


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
        lambda i: log2(i.channels / i.step_k),
    ),
    Feature(
        "flat_efficiency_k", "", "useful share of the steps along K if taps were walked as one", "interaction",
        lambda i: i.gemm.k / (ceil_div(i.gemm.k, i.step_k) * i.step_k),
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

# Stands last, so that the columns of earlier models keep their places.
_LAYOUT = Feature("is_channels_first", "flag", "the layout is NGCHW", "problem", lambda i: i.p.layout == CHANNELS_FIRST)

# These flags stand first in the matrix, in this order; those of later pipelines stand last.
_FIRST_FLAGS = ("taps", "flat", "point", "depth")


def conv_table() -> FeatureTable:
    """Return the features of grouped convolution, with a flag for each pipeline that is registered now."""
    return _table(pipelines_of("grouped_conv"), tuple(CK_TILE.pipelines("grouped_conv")))


@cache
def _table(pipelines: tuple[str, ...], ck_pipelines: tuple[str, ...]) -> FeatureTable:
    later = (name for name in pipelines if name not in _FIRST_FLAGS)
    features = (
        *_PROBLEM, *KERNEL_FEATURES, *pipeline_features(_FIRST_FLAGS), *TILE_FEATURES, *_INTERACTION,
        *HARDWARE_FEATURES, *_LAUNCH, *CK_FEATURES, *pipeline_features(ck_pipelines), *NAMED_FEATURES,
        *pipeline_features(later), _LAYOUT, *STREAMK_FEATURES,
        *DEPTHWISE_FEATURES, *ARCH_FEATURES,
    )  # fmt: skip
    return FeatureTable("grouped_conv", features, ConvInputs, (*TILE_COSTS, *_COSTS), (*TILE_DRIVERS, *_DRIVERS))

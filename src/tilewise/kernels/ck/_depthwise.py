"""CK Tile's kernels of depthwise forward convolution: their parameters, names and rules.

Such a kernel has tiles of pixels and no matrix instruction, reads channels first (NGCHW), and is built for one filter.
The canonical name is ``grouped_conv_forward_{dtype}_2d_depthwise_{tile_h}x{tile_w}_f{filter}_s{stride_h}x{stride_w}_``
``p{pad_h}x{pad_w}_nb{nbatch}_sub{sub_h}x{sub_w}_vec{in_vec}_{out_vec}``. CK Tile's generator begins with
``grouped_conv_fwd_depthwise_{dtype}_{layout}_2d`` instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tilewise.kernels._contract import Rules
from tilewise.kernels._formulas import Array, KernelLike, ProblemLike
from tilewise.ops import CHANNELS_FIRST, output_sizes

PIPELINE = "depthwise"  # in place of a pipeline along K
SIZES = (
    "dw_tile_h", "dw_tile_w", "dw_filter", "dw_stride_h", "dw_stride_w", "dw_pad_h", "dw_pad_w", "dw_nbatch",
    "dw_sub_h", "dw_sub_w", "dw_in_vec", "dw_out_vec",
)  # fmt: skip

_WAVE = 64  # lanes; a block is one wave
_N = r"(?:0|[1-9][0-9]{0,5})"
_SIZES = (
    rf"(?P<dw_tile_h>{_N})x(?P<dw_tile_w>{_N})_f(?P<dw_filter>{_N})_s(?P<dw_stride_h>{_N})x(?P<dw_stride_w>{_N})"
    rf"_p(?P<dw_pad_h>{_N})x(?P<dw_pad_w>{_N})_nb(?P<dw_nbatch>{_N})_sub(?P<dw_sub_h>{_N})x(?P<dw_sub_w>{_N})"
    rf"_vec(?P<dw_in_vec>{_N})_(?P<dw_out_vec>{_N})"
)
CONFIG = re.compile(rf"2d_{PIPELINE}_{_SIZES}")
GENERATED = re.compile(rf"grouped_conv_fwd_depthwise_(?P<dtype>[a-z]+[0-9]+)_ngchw_2d_{_SIZES}")
EXAMPLE = f"2d_{PIPELINE}_16x16_f3_s1x1_p1x1_nb8_sub1x4_vec8_8"


def fields_of(sizes: Mapping[str, int]) -> dict[str, Any]:
    """Return the kernel columns for the twelve sizes; the block is a tile of pixels of one channel, and one warp."""
    pixels = sizes["dw_tile_h"] * sizes["dw_tile_w"] * sizes["dw_nbatch"]
    tile = {"tile_m": pixels, "tile_n": 1, "tile_k": sizes["dw_filter"] ** 2}
    return {**tile, "pipeline": PIPELINE, "ndim": 2, "warp_m": 1, "warp_n": 1, "warp_k": 1, **sizes}


def sizes_in(match: re.Match[str]) -> dict[str, int]:
    """Return the twelve sizes of a match of :data:`CONFIG` or :data:`GENERATED`."""
    return {name: int(match[name]) for name in SIZES}


def config_of(k: KernelLike) -> str:
    """Return the configuration of a depthwise kernel, which :data:`CONFIG` matches."""
    return (
        f"2d_{PIPELINE}_{k.dw_tile_h}x{k.dw_tile_w}_f{k.dw_filter}_s{k.dw_stride_h}x{k.dw_stride_w}"
        f"_p{k.dw_pad_h}x{k.dw_pad_w}_nb{k.dw_nbatch}_sub{k.dw_sub_h}x{k.dw_sub_w}_vec{k.dw_in_vec}_{k.dw_out_vec}"
    )


def build_rules(k: KernelLike) -> Iterator[tuple[bool, str]]:
    """Yield (is broken, reason) for each rule of CK's code that a kernel must meet for any problem."""
    yield min(getattr(k, n) for n in SIZES if "pad" not in n) < 1, "all sizes but the padding must be at least 1"
    per_wave = int(tiles_per_wave(k))
    yield per_wave < 1, f"a tile has more parts than the {_WAVE} lanes of a wave"
    yield k.dw_nbatch % max(per_wave, 1) != 0, f"nb must be a multiple of the {per_wave} tiles of a wave"
    yield k.dw_pad_w < 1, "the padding along the width must be at least 1"


def tiles_per_wave(k: KernelLike) -> Array:
    """Return the tiles that a wave computes at once: lanes by the parts of a tile."""
    parts_h = -(-k.dw_tile_h // np.maximum(k.dw_sub_h, 1))
    parts_w = -(-k.dw_tile_w // np.maximum(k.dw_sub_w, 1))
    return _WAVE // np.maximum(parts_h * parts_w, 1)


def checks(k: KernelLike, p: ProblemLike, variant: str) -> Rules:
    """Yield the rules of CK's code that decide whether a depthwise kernel supports a problem, as (is broken, reason).

    Args:
        k: a kernel, or a namespace of kernel columns as arrays; rows of other kernels give any answer.
        p: the problem.
        variant: the variant of its op.
    """
    yield variant != "forward", "depthwise kernels compute forward only"
    yield p.layout != CHANNELS_FIRST, "depthwise kernels take channels first (NGCHW) only"
    yield (p.C != p.G) | (p.K != p.G), "depthwise kernels compute one input and one output channel a group"
    for name, sizes in (
        ("filter", ((p.Y, k.dw_filter), (p.X, k.dw_filter))),
        ("stride", ((p.stride_h, k.dw_stride_h), (p.stride_w, k.dw_stride_w))),
        ("padding", ((p.pad_h, k.dw_pad_h), (p.pad_w, k.dw_pad_w))),
        ("dilation", ((p.dilation_h, 1), (p.dilation_w, 1))),
    ):
        yield (sizes[0][0] != sizes[0][1]) | (sizes[1][0] != sizes[1][1]), f"the kernel is built for another {name}"
    yield p.N % np.maximum(k.dw_nbatch, 1) != 0, "the images of a tile must divide N"
    out = output_sizes(p)
    larger = (out.Ho > k.dw_tile_h) | (out.Wo > k.dw_tile_w)
    yield (tiles_per_wave(k) > 1) & larger, "the output must fit into one of the tiles that a wave computes at once"

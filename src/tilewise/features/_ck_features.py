"""The features of CK Tile's kernels alone; 0 for the kernels of other backends, and where a name omits the value."""

from __future__ import annotations

import zlib

import numpy as np

from tilewise.features._feature_table import Feature, Inputs
from tilewise.kernels import Array
from tilewise.kernels.ck import STRATEGIES
from tilewise.ops import GEMM_LAYOUTS


def _setting(name: str, unit: str, meaning: str) -> Feature:
    return Feature(name, unit, meaning, "kernel", lambda i: i.column(name, 0))


def _is(inputs: Inputs, name: str, value: str) -> Array:
    return np.asarray(inputs.column(name, "") == value, dtype=np.float64)


def _setting_is(name: str, value: str, meaning: str) -> Feature:
    return Feature(f"{name}_{value}", "flag", meaning, "kernel", lambda i: _is(i, name, value))


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

_STRATEGY_BITS = 20  # of the number of a strategy in a source's own spelling


def _strategy_number(inputs: Inputs) -> Array:
    """Return a number for each way of adding partial sums: those of CK Tile in order, others by their spelling."""
    texts, place = np.unique(np.asarray(inputs.column("streamk_reduction_strategy", "")), return_inverse=True)
    known = ("", *STRATEGIES)
    of_text = [
        known.index(t) if t in known else len(known) + zlib.crc32(t.encode()) % (1 << _STRATEGY_BITS)
        for t in map(str, texts)
    ]
    return np.array(of_text, dtype=np.float64)[place]


# Both stand last in the matrix, so that the columns of earlier models keep their places.
STREAMK_FEATURES = (
    _setting("streamk_enabled", "flag", "K is divided evenly over the compute units"),
    Feature("streamk_reduction", "", "number of the way in which partial sums are added", "kernel", _strategy_number),
    _setting("streamk_persistent", "flag", "stream-K's blocks stay on their compute unit"),
)

DEPTHWISE_FEATURES = (
    *(_setting(f"dw_tile_{x}", "pixels", f"output pixels of a depthwise tile along {x.upper()}") for x in "hw"),
    _setting("dw_filter", "", "filter size that a depthwise kernel is built for"),
    *(_setting(f"dw_stride_{x}", "", f"stride along {x.upper()} that it is built for") for x in "hw"),
    *(_setting(f"dw_pad_{x}", "", f"padding along {x.upper()} that it is built for") for x in "hw"),
    _setting("dw_nbatch", "images", "images of a depthwise tile"),
    *(_setting(f"dw_sub_{x}", "pixels", f"output pixels of a lane along {x.upper()}") for x in "hw"),
    _setting("dw_in_vec", "", "elements of one load of a depthwise kernel"),
    _setting("dw_out_vec", "", "elements of one store of a depthwise kernel"),
)

# A kernel serves only the layout that it is compiled for. These flags distinguish the kernels of a pool.
GEMM_LAYOUT_FEATURES = tuple(
    _setting_is("gemm_layout", layout, f"compiled for operands stored as {layout}") for layout in GEMM_LAYOUTS
)

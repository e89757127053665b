"""The one place that says which kernels are legal on an arch, and which problems a kernel supports.

Pools, collecting, features, search and dispatch all ask here. A rule answers with the reason, or None if all is well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.kernels.kernel import Kernel
from tilewise.ops import GroupedConvProblem, Problem
from tilewise.ops.dtypes import operand_bytes
from tilewise.ops.grouped_conv import input_elements, output_elements, weight_elements

# How a convolution kernel walks its K dimension (filter taps x channels of one group):
#   taps   one step = one tap x tile_k channels; best where a group has many channels
#   flat   one step = tile_k of the flattened (tap, channel) index; best where it has few
#   point  a 1x1 filter without padding: a plain matrix product
#   depth  one input channel a group: no matrix product, each output channel filters its input channel
CONV_PIPELINES = ("taps", "flat", "point", "depth")

MIN_DOT = 16  # tl.dot needs at least 16 along each dimension
MAX_ACCUMULATORS = 128  # 32-bit registers a thread may spend on the output tile, of the 255 it has
INT32_ELEMENTS = 2**31  # kernels index with 32 bits
MAX_GRID_YZ = 65535  # CUDA's limit of the grid's second and third dimension
MAX_SPLIT_WORKSPACE_BYTES = 2**31  # partial sums of a split-K launch
MAX_WASTE = 8  # times the work of the narrowest tile; more is hopeless, and slow enough to starve a sweep ...
FREE_WORK = 5e9  # ... unless the whole launch is this few padded FLOPs (some 10 us)


def illegal(kernel: Kernel, dtype: str, arch: HardwareProfile) -> str | None:
    """Why this configuration cannot run on `arch` whatever the problem, or None."""
    sizes = (kernel.tile_m, kernel.tile_n, kernel.tile_k, kernel.num_warps)
    if any(s < 1 or s & (s - 1) for s in sizes):
        return "tile sizes and warps must be powers of two"
    if kernel.num_stages < 1 or kernel.group_m < 1 or kernel.split_k < 1:
        return "num_stages, group_m and split_k must be at least 1"
    if kernel.pipeline not in CONV_PIPELINES:
        return f"pipeline must be one of {', '.join(CONV_PIPELINES)}"
    threads = kernel.num_warps * arch.warp_size
    accumulators = accumulators_per_thread(kernel, arch)
    if accumulators > MAX_ACCUMULATORS:
        return f"{accumulators} accumulators a thread, more than {MAX_ACCUMULATORS}"
    if accumulators < 1:
        return f"{threads} threads for {kernel.tile_m * kernel.tile_n} outputs"
    if kernel.pipeline == "depth":
        return "depth takes tile_k 1 and split_k 1" if (kernel.tile_k, kernel.split_k) != (1, 1) else None
    if min(kernel.tile_m, kernel.tile_n, kernel.tile_k) < MIN_DOT:
        return f"tile_m, tile_n and tile_k must be at least {MIN_DOT}"
    needed = shared_memory_bytes(kernel, dtype)
    if needed > arch.shared_memory_bytes:
        return f"needs {needed} bytes of shared memory, {arch.name} has {arch.shared_memory_bytes} a block"
    return None


def accumulators_per_thread(kernel: Any, arch: HardwareProfile) -> Any:
    """32-bit partial sums that a thread holds.

    `kernel` is a :class:`Kernel`, or a namespace of its columns as arrays.
    """
    return kernel.tile_m * kernel.tile_n // (kernel.num_warps * arch.warp_size)


def shared_memory_bytes(kernel: Any, dtype: str) -> Any:
    """Bytes that the operand tiles in flight take: one A and one B tile a stage. ``depth`` stages nothing.

    `kernel` is a :class:`Kernel`, or a namespace of its columns as arrays.
    """
    staged = kernel.num_stages * (kernel.tile_m + kernel.tile_n) * kernel.tile_k * operand_bytes(dtype)
    return (kernel.pipeline != "depth") * staged


def unsupported(kernel: Kernel, problem: Problem, variant: str) -> str | None:
    """Why `kernel` cannot compute `problem`, or None. `kernel` must be legal."""
    return next((reason for broken, reason in _checks(kernel, problem, variant) if broken), None)


def supported_mask(kernels: Any, problem: Problem, variant: str) -> np.ndarray:
    """Which of many kernels compute `problem`: bool, (kernels,).

    Args:
        kernels: a namespace of the kernel columns as arrays of shape (kernels,); the kernels must be legal.
        problem: the shape.
        variant: the variant of its op.
    """
    broken = np.zeros(np.shape(kernels.tile_m), dtype=bool)
    for rule, _ in _checks(kernels, problem, variant):
        broken |= rule
    return ~broken


def _checks(kernel: Any, problem: Problem, variant: str) -> Iterator[tuple[Any, str]]:
    """The rules of the problem's op as (broken, reason); `broken` is a bool, or an array of them for columns."""
    if problem.op not in _SUPPORT:
        yield True, f"no kernels for op {problem.op}"
        return
    yield from _SUPPORT[problem.op](kernel, problem, variant)


def _conv(kernel: Any, problem: Problem, variant: str) -> Iterator[tuple[Any, str]]:
    assert isinstance(problem, GroupedConvProblem)
    for name, count in (("input", input_elements), ("filter", weight_elements), ("output", output_elements)):
        yield count(problem) >= INT32_ELEMENTS, f"{name} has 2^31 elements or more"
    taps, padding = problem.Z * problem.Y * problem.X, (problem.pad_d, problem.pad_h, problem.pad_w)
    yield (kernel.pipeline == "point") & (taps > 1 or any(padding)), "point needs a 1x1 filter without padding"
    yield (kernel.pipeline == "depth") & (problem.C != problem.G), "depth needs one input channel a group"
    gemm, product = problem.implicit_gemm(variant), kernel.pipeline != "depth"
    # bwd_weight sums over pixels, the other two over taps x channels: only their K falls apart into taps
    taps = taps if variant != "bwd_weight" else 1
    yield product & (gemm.batch > MAX_GRID_YZ), f"more than {MAX_GRID_YZ} groups"
    split = product & (kernel.split_k > 1)
    yield split & (kernel.split_k > -(-gemm.k // kernel.tile_k)), "split_k leaves programs without work"
    workspace = kernel.split_k * output_elements(problem) * 4
    yield split & (workspace > MAX_SPLIT_WORKSPACE_BYTES), "split_k needs more than 2 GiB of workspace"
    rows_cols = gemm.batch * _padded(gemm.m, kernel.tile_m) * _padded(gemm.n, kernel.tile_n)
    by_tap = taps * _padded(gemm.k // taps, kernel.tile_k)
    work = 2.0 * rows_cols * np.where(kernel.pipeline == "flat", _padded(gemm.k, kernel.tile_k), by_tap)
    leanest = 2.0 * gemm.batch * _padded(gemm.m, MIN_DOT) * _padded(gemm.n, MIN_DOT) * _padded(gemm.k, MIN_DOT)
    wasted = (work > FREE_WORK) & (work > MAX_WASTE * leanest)
    yield product & wasted, f"more than {MAX_WASTE} times the leanest tile's work"


def _padded(size: int, tile: Any) -> Any:
    return -(-size // tile) * tile


_SUPPORT: dict[str, Callable[[Any, Problem, str], Iterator[tuple[Any, str]]]] = {"grouped_conv": _conv}

"""The one place that says which kernels are legal on an arch, and which problems a kernel supports.

Pools, collecting, features, search and dispatch all ask here. A rule answers with the reason, or None where all is well.
"""

from __future__ import annotations

from collections.abc import Callable

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
    accumulators = kernel.tile_m * kernel.tile_n // threads
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


def shared_memory_bytes(kernel: Kernel, dtype: str) -> int:
    """Bytes that the operand tiles in flight take: one A and one B tile a stage. ``depth`` stages nothing."""
    if kernel.pipeline == "depth":
        return 0
    return kernel.num_stages * (kernel.tile_m + kernel.tile_n) * kernel.tile_k * operand_bytes(dtype)


def unsupported(kernel: Kernel, problem: Problem, variant: str) -> str | None:
    """Why `kernel` cannot compute `problem`, or None. `kernel` must be legal."""
    rule = _SUPPORT.get(problem.op)
    return rule(kernel, problem, variant) if rule else f"no kernels for op {problem.op}"


def _conv(kernel: Kernel, problem: Problem, variant: str) -> str | None:
    assert isinstance(problem, GroupedConvProblem)
    for name, count in (("input", input_elements), ("filter", weight_elements), ("output", output_elements)):
        if count(problem) >= INT32_ELEMENTS:
            return f"{name} has 2^31 elements or more"
    if kernel.pipeline == "point" and (problem.Z * problem.Y * problem.X, problem.pad_d, problem.pad_h, problem.pad_w) != (
        (1, 0, 0, 0)
    ):
        return "point needs a 1x1 filter without padding"
    if kernel.pipeline == "depth":
        return None if problem.C == problem.G else "depth needs one input channel a group"
    gemm = problem.implicit_gemm(variant)
    if gemm.batch > MAX_GRID_YZ:
        return f"more than {MAX_GRID_YZ} groups"
    if kernel.split_k > 1:
        if kernel.split_k > -(-gemm.k // kernel.tile_k):
            return f"split_k {kernel.split_k} leaves programs without work"
        if kernel.split_k * output_elements(problem) * 4 > MAX_SPLIT_WORKSPACE_BYTES:
            return "split_k needs more than 2 GiB of workspace"
    return None


_SUPPORT: dict[str, Callable[[Kernel, Problem, str], str | None]] = {"grouped_conv": _conv}

"""The one place that says which kernels are legal on an arch, and which problems a kernel supports.

Pools, collecting, features, search and dispatch all ask here. A rule answers with the reason, or None if all is well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from operator import and_, or_
from typing import Any

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.kernels.boxes import BOX_PIXELS, covering_pixels, tapwise_columns
from tilewise.kernels.kernel import Kernel
from tilewise.ops import Problem, Target
from tilewise.ops.dtypes import operand_bytes
from tilewise.ops.gemm import stored_rows
from tilewise.ops.grouped_conv import implicit_gemm, input_elements, output_elements, output_sizes, weight_elements

# How a convolution kernel walks its K dimension: forward over filter taps x channels of one group, bwd_data over taps x
# output channels of one group, bwd_weight over output pixels (with columns that are tap x channel):
#   taps   one step (bwd_weight: one tile of columns) lies within one tap; best where a group has many channels
#   flat   tiles cover the flattened (tap, channel) index; best where it has few
#   point  a 1x1 filter without padding: a plain matrix product
#   depth  one input channel a group: no matrix product; tile_m pixels x tile_n channels a step
# and besides:
#   box    as taps, but tile_m pixels (bwd_weight: tile_k) are a box, which a tensor descriptor loads; in bwd_weight a
#          tile_n of 3/2 of a power of two is columns of three taps, a third each
#   lanes  as depth, with one output channel a group too; num_stages taps are loaded at once (not in bwd_weight)
#   strip  as lanes, but a thread keeps tile_k pixels side by side in a row, a strip, and loads a filter row at once for
#          them; tile_m pixels are tile_m / tile_k strips (bwd_weight: rows of strips)
#   tma, persistent  as for a matrix product (below), which a 1x1 filter without padding, stride and groups is
CONV_PIPELINES = ("taps", "flat", "point", "depth")
PRODUCT_PIPELINES = ("tma", "persistent")
PIXEL_PIPELINES = ("box", "lanes", "strip", *PRODUCT_PIPELINES)
PIXEL_VARIANTS = ("forward", "bwd_data")  # whose rows are pixels
DEPTHWISE = ("depth", "lanes", "strip")  # without a matrix product, and so without staging

# How a matrix product loads its operands and shares out its tiles:
#   plain       loads through pointers, one program a tile
#   tma         loads through tensor descriptors (Hopper's tensor memory accelerator)
#   persistent  loads and stores through them, and one program a multiprocessor that takes tile after tile
GEMM_PIPELINES = ("plain", *PRODUCT_PIPELINES)

DESCRIBED = (*PRODUCT_PIPELINES, "box")  # load through tensor descriptors

PIPELINES: dict[tuple[str, str], tuple[str, ...]] = {
    **{("grouped_conv", v): CONV_PIPELINES + PIXEL_PIPELINES for v in PIXEL_VARIANTS},
    ("grouped_conv", "bwd_weight"): (*CONV_PIPELINES, "box", "strip", *PRODUCT_PIPELINES),
    ("gemm", "universal"): GEMM_PIPELINES,
}
DTYPES: dict[str, tuple[str, ...]] = {"grouped_conv": ("bf16", "fp16"), "gemm": ("bf16", "fp16", "fp8")}

MIN_DOT = 16  # tl.dot needs at least 16 along each dimension
MIN_DOT_BYTES = 32  # ... and this many bytes along K
WARPGROUP_ROWS = 64  # of a warpgroup's matrix instruction (Hopper)
BLOCK_REGISTERS = 65536  # of 32 bits, for all threads of a block; no thread has more than 255
MAX_ACCUMULATORS = 128  # registers a thread may spend on the output tile, and no more than half of what it has
INT32_ELEMENTS = 2**31  # kernels index with 32 bits
MAX_STRIP = 8  # pixels
MAX_STRIP_FILTER = 11  # width of a filter that a strip unrolls: beyond, there is much code and no register left ...
MAX_STRIP_COLUMNS = 32  # ... nor beyond this reach along the image
MAX_GRID_YZ = 65535  # CUDA's limit of the grid's second and third dimension
MAX_SPLIT_WORKSPACE_BYTES = 2**31  # partial sums of a split-K launch
DESCRIPTOR_ELEMENTS = 16  # rows of a tensor descriptor begin at multiples of 16 bytes; asked for whatever the type
RESULT_BYTES = 2  # of an element of a matrix product's result, whatever the type of its operands
RESULT_ELEMENTS = 8  # ... so this many of them are the 16 bytes at whose multiples rows begin
BARRIER_BYTES = 512  # of the walks with tensor descriptors
MAX_WASTE = 8  # times the work of the narrowest tile; more is hopeless, and slow enough to starve a sweep ...
FREE_WORK = 5e9  # ... unless the whole launch is this few padded FLOPs (some 10 us)


def illegal(kernel: Kernel, target: Target, arch: HardwareProfile) -> str | None:
    """Why this configuration cannot run for `target` on `arch` whatever the problem, or None."""
    cols, filter_box = kernel.tile_n, kernel.pipeline == "box" and target.variant == "bwd_weight"
    if cols % 3 == 0 and (kernel.pipeline == "tma" or filter_box):
        cols = cols // 3  # these take 3/2 of a power of two as well, in two or three parts
    sizes = (kernel.tile_m, cols, kernel.tile_k, kernel.num_warps)
    if any(s < 1 or s & (s - 1) for s in sizes):
        return "tile sizes and warps must be powers of two"
    if kernel.num_stages < 1 or kernel.group_m < 1 or kernel.split_k < 1:
        return "num_stages, group_m and split_k must be at least 1"
    pipelines = PIPELINES.get((target.op, target.variant), ())
    if kernel.pipeline not in pipelines:
        return f"pipeline must be one of {', '.join(pipelines)}" if pipelines else f"there are none for {target.name}"
    if target.dtype not in DTYPES[target.op]:
        return f"there are no {target.dtype} kernels for {target.op}"
    threads = kernel.num_warps * arch.warp_size
    accumulators = accumulators_per_thread(kernel, arch)
    most = min(MAX_ACCUMULATORS, BLOCK_REGISTERS // threads // 2)
    if accumulators > most:
        return f"{accumulators} accumulators a thread, more than {most}"
    if accumulators < 1:
        return f"{threads} threads for {kernel.tile_m * kernel.tile_n} outputs"
    if kernel.pipeline in DEPTHWISE:
        if kernel.pipeline == "strip":
            most = min(MAX_STRIP, kernel.tile_m, accumulators)
            if not 1 < kernel.tile_k <= most:
                return f"strip takes a tile_k of 2 to {MAX_STRIP}, tile_m and the accumulators a thread, here {most}"
            if kernel.num_stages != 1:  # a filter row's loads are all that registers hold
                return "strip takes num_stages 1"
        elif kernel.tile_k != 1:
            return f"{kernel.pipeline} takes tile_k 1"
        whole = kernel.split_k > 1 and target.variant != "bwd_weight"
        return f"{kernel.pipeline} takes split_k 1" if whole else None
    if kernel.pipeline == "box":
        pixels, rows = ("tile_k", "tile_m") if filter_box else ("tile_m", "tile_n")
        if getattr(kernel, pixels) not in BOX_PIXELS or getattr(kernel, rows) < WARPGROUP_ROWS:
            allowed = ", ".join(map(str, BOX_PIXELS))
            return f"box takes a {pixels} of {allowed} and a {rows} of at least {WARPGROUP_ROWS}"
    least_k = max(MIN_DOT, MIN_DOT_BYTES // operand_bytes(target.dtype))
    if min(kernel.tile_m, cols) < MIN_DOT or kernel.tile_k < least_k:
        return f"tile_m and tile_n must be at least {MIN_DOT}, tile_k at least {least_k}"
    needed = shared_memory_bytes(kernel, target.dtype) + _store_bytes(kernel)
    if needed > arch.shared_memory_bytes:
        return f"needs {needed} bytes of shared memory, {arch.name} has {arch.shared_memory_bytes} a block"
    return None


def accumulators_per_thread(kernel: Any, arch: HardwareProfile) -> Any:
    """32-bit partial sums that a thread holds.

    `kernel` is a :class:`Kernel`, or a namespace of its columns as arrays.
    """
    return kernel.tile_m * kernel.tile_n // (kernel.num_warps * arch.warp_size)


def shared_memory_bytes(kernel: Any, dtype: str) -> Any:
    """Bytes that the operand tiles in flight take: one A and one B tile a stage of a matrix product.

    `kernel` is a :class:`Kernel`, or a namespace of its columns as arrays.
    """
    staged = kernel.num_stages * (kernel.tile_m + kernel.tile_n) * kernel.tile_k * operand_bytes(dtype)
    return is_product(kernel) * staged


def is_product(kernel: Any) -> Any:
    """Whether the kernel computes a matrix product; `kernel` as for :func:`shared_memory_bytes`."""
    return reduce(and_, (kernel.pipeline != walk for walk in DEPTHWISE))


def strip_columns(kernel: Any, problem: Any) -> Any:
    """Columns of the image that a strip's pixels reach in a filter row; ints, or arrays as for the others."""
    return (kernel.tile_k - 1) * problem.stride_w + (problem.X - 1) * problem.dilation_w + 1


def _store_bytes(kernel: Kernel) -> int:
    """Shared memory in use beside the operand tiles in flight, as compiled by Triton 3.6.

    Barriers, and where the next tile is loaded while one is stored, that one as 16-bit results.
    """
    if kernel.pipeline not in DESCRIBED:
        return 0
    stored: int = stores_tiles(kernel) * kernel.tile_m * kernel.tile_n * RESULT_BYTES
    return BARRIER_BYTES + stored


def stores_tiles(kernel: Any) -> Any:
    """Whether results are stored through a tensor descriptor."""
    return (kernel.pipeline == "persistent") & (kernel.split_k == 1)


def checks(kernel: Any, problem: Problem, variant: str) -> Iterator[tuple[Any, str]]:
    """The rules of the problem's op as (broken, reason); `broken` is a bool, or an array of them for columns."""
    if problem.op not in SUPPORT:
        yield True, f"no kernels for op {problem.op}"
        return
    yield from SUPPORT[problem.op](kernel, problem, variant)


def _conv(kernel: Any, problem: Any, variant: str) -> Iterator[tuple[Any, str]]:
    counts = {"forward": output_elements, "bwd_data": input_elements, "bwd_weight": weight_elements}
    for name, count in (("input", input_elements), ("filter", weight_elements), ("output", output_elements)):
        yield count(problem) >= INT32_ELEMENTS, f"{name} has 2^31 elements or more"
    taps, padding = problem.Z * problem.Y * problem.X, problem.pad_d | problem.pad_h | problem.pad_w
    reaching = (taps > 1) | (padding > 0)
    yield (kernel.pipeline == "point") & reaching, "point needs a 1x1 filter without padding"
    yield (kernel.pipeline == "depth") & (problem.C != problem.G), "depth needs one input channel a group"
    gemm, product = implicit_gemm(problem, variant), is_product(kernel)
    yield product & (gemm.batch > MAX_GRID_YZ), f"more than {MAX_GRID_YZ} groups"
    classes, m, k = 1, gemm.m, gemm.k
    if variant == "bwd_data":
        classes, taps = _residue_classes(problem), _class_taps(problem)
        m, k = -(-gemm.m // classes), taps * (problem.K // problem.G)
        yield classes * kernel.split_k > MAX_GRID_YZ, f"more than {MAX_GRID_YZ} residue classes x split_k"
    rows, box, strip = _padded(m, kernel.tile_m), kernel.pipeline == "box", kernel.pipeline == "strip"
    leanest = 2.0 * classes * gemm.batch * _padded(m, MIN_DOT) * _padded(gemm.n, MIN_DOT) * _padded(k, MIN_DOT)
    if np.any(box):  # most pools would compute this for nothing
        if variant == "bwd_weight":
            k = np.where(box, covering_pixels(problem, variant, kernel.tile_k), k)
        else:
            rows = np.where(box, covering_pixels(problem, variant, kernel.tile_m), rows)
    if variant == "bwd_weight":  # a strip follows rows of pixels from end to end
        k = np.where(strip, k // output_sizes(problem).Wo * kernel.tile_k, k)
    steps = -(-k // np.where(product, kernel.tile_k, kernel.tile_m))
    yield from _shares(kernel, steps, counts[variant](problem))
    several = (problem.C != problem.G) | (problem.K != problem.G)
    for walk in ("lanes", "strip"):
        yield (kernel.pipeline == walk) & several, f"{walk} needs one input and one output channel a group"
    yield from _stripped(kernel, problem, variant)
    flat, multiplied = kernel.pipeline == "flat", reduce(or_, (kernel.pipeline == walk for walk in PRODUCT_PIPELINES))
    if np.any(multiplied):
        beyond = reaching | (_residue_classes(problem) > 1) | (problem.G > 1)
        yield multiplied & beyond, "a matrix product needs a 1x1 filter, no padding, stride or groups"
        yield from _multiplied(kernel, problem, variant, multiplied)
    if np.any(box):
        yield from _boxed(kernel, problem, variant)
    if variant == "bwd_weight":  # a walk by taps pads its columns, not K
        cols = np.where(flat, _padded(gemm.n, kernel.tile_n), tapwise_columns(kernel, problem))
        depth = _padded(k, kernel.tile_k)
    else:
        cols = _padded(gemm.n, kernel.tile_n)
        depth = np.where(flat, _padded(k, kernel.tile_k), taps * _padded(k // taps, kernel.tile_k))
    yield product & _wasteful(2.0 * classes * gemm.batch * rows * cols * depth, leanest), _WASTE


def _boxed(kernel: Any, p: Any, variant: str) -> Iterator[tuple[Any, str]]:
    """Rules of the walk that loads boxes of pixels."""
    box = kernel.pipeline == "box"
    inner = {"forward": p.C // p.G, "bwd_data": p.K // p.G, "bwd_weight": 0}[variant]  # channels that are summed over
    # in bwd_weight also where a group begins within a row: an H200 faults at others ("illegal instruction")
    others = {"forward": 0, "bwd_data": p.K, "bwd_weight": p.K // p.G}[variant]
    rows = np.gcd(p.C // p.G, others)
    strided = (variant != "bwd_data") & ((p.stride_d > 1) | (p.stride_h > 1) | (p.stride_w > 1))
    yield box & (rows % RESULT_ELEMENTS != 0), f"{RESULT_ELEMENTS} must divide the rows that descriptors load"
    # what lies beyond is another group's or pixel's: multiplied by zero, but perhaps infinite
    yield box & ((p.G > 1) | strided) & (inner % kernel.tile_k != 0), "tile_k must divide the channels of a box"
    flat = (p.Di == 1) & (p.Z == 1) & (p.pad_d == 0) & (p.stride_d == 1)
    whole = flat & (p.Hi % p.stride_h == 0) & (p.Wi % p.stride_w == 0)
    yield box & strided & np.logical_not(whole), "a strided box needs 2D images that the stride divides"


def _multiplied(kernel: Any, p: Any, variant: str, product: Any) -> Iterator[tuple[Any, str]]:
    """Rules of the walks that take a convolution's tensors as matrices."""
    loaded, stored = (p.C, p.K) if variant == "forward" else (np.gcd(p.C, p.K), p.C)
    yield product & (loaded % RESULT_ELEMENTS != 0), f"{RESULT_ELEMENTS} must divide the rows that descriptors load"
    yield stores_tiles(kernel) & (stored % RESULT_ELEMENTS != 0), _STORED_ROWS


def _stripped(kernel: Any, p: Any, variant: str) -> Iterator[tuple[Any, str]]:
    """Rules of the walk whose threads keep strips of pixels."""
    strip = kernel.pipeline == "strip"
    yield strip & (variant == "bwd_data") & (_residue_classes(p) > 1), "strip needs a stride of 1 in bwd_data"
    yield strip & (p.X > MAX_STRIP_FILTER), f"strip takes filters at most {MAX_STRIP_FILTER} wide"
    yield (
        strip & (strip_columns(kernel, p) > MAX_STRIP_COLUMNS),
        f"a strip takes at most {MAX_STRIP_COLUMNS} columns of the image",
    )


def _residue_classes(p: Any) -> Any:
    """Classes of input pixels by their residue modulo the stride: each is a product of its own in bwd_data."""
    return p.stride_d * p.stride_h * p.stride_w


def _class_taps(p: Any) -> Any:
    """The most filter taps that reach one residue class."""
    taps = 1
    for size, axis in ((p.Z, "d"), (p.Y, "h"), (p.X, "w")):
        stride, dilation = getattr(p, f"stride_{axis}"), getattr(p, f"dilation_{axis}")
        taps = taps * -(-size // (stride // np.gcd(stride, dilation)))
    return taps


def _gemm(kernel: Any, problem: Any, variant: str) -> Iterator[tuple[Any, str]]:
    p = problem
    for name, count in (("A", p.M * p.K), ("B", p.K * p.N), ("C", p.M * p.N)):
        yield count >= INT32_ELEMENTS, f"{name} has 2^31 elements or more"
    rows = stored_rows(p)
    unaligned = (rows["a"] % DESCRIPTOR_ELEMENTS != 0) | (rows["b"] % DESCRIPTOR_ELEMENTS != 0)
    yield (kernel.pipeline != "plain") & unaligned, f"{DESCRIPTOR_ELEMENTS} must divide the rows that descriptors load"
    yield stores_tiles(kernel) & (p.N % RESULT_ELEMENTS != 0), _STORED_ROWS
    yield from _shares(kernel, -(-p.K // kernel.tile_k), p.M * p.N)
    leanest = 2.0 * _padded(p.M, MIN_DOT) * _padded(p.N, MIN_DOT) * _padded(p.K, MIN_DOT)
    work = 2.0 * _padded(p.M, kernel.tile_m) * _padded(p.N, kernel.tile_n) * _padded(p.K, kernel.tile_k)
    yield _wasteful(work, leanest), _WASTE


def _shares(kernel: Any, steps: Any, results: Any) -> Iterator[tuple[Any, str]]:
    """Rules of a split of K's steps, whose partial sums lie in a workspace."""
    split = kernel.split_k > 1
    yield split & (kernel.split_k > steps), "split_k leaves programs without work"
    yield split & ((kernel.split_k + 1) * steps >= INT32_ELEMENTS), "split_k x steps along K is 2^31 or more"
    workspace = kernel.split_k * results * 4
    yield split & (workspace > MAX_SPLIT_WORKSPACE_BYTES), "split_k needs more than 2 GiB of workspace"


_STORED_ROWS = f"{RESULT_ELEMENTS} must divide the rows that descriptors store"
_WASTE = f"more than {MAX_WASTE} times the leanest tile's work"


def _wasteful(work: Any, leanest: Any) -> Any:
    return (work > FREE_WORK) & (work > MAX_WASTE * leanest)


def _padded(size: Any, tile: Any) -> Any:
    return -(-size // tile) * tile


# Which problems of an op a kernel supports: (kernel, problem, variant) -> (broken, reason), as of :func:`checks`.
SUPPORT: dict[str, Callable[[Any, Problem, str], Iterator[tuple[Any, str]]]] = {"grouped_conv": _conv, "gemm": _gemm}

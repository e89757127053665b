"""The only rules for CK Tile kernels: which are legal on an arch, and which problems a kernel supports.

A parameter that a kernel does not state (0 or "", see :class:`~tilewise.kernels.ck.CkKernel`) breaks no rule, except
for a convolution's vector widths: those that CK Tile's names leave out are known. Figures of an arch (shared memory,
warps, the tiles of its matrix instructions) come from ``conf/arch``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from itertools import product
from math import log2
from typing import NamedTuple

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.kernels._contract import Rules
from tilewise.kernels._formulas import Array, KernelLike, ProblemLike
from tilewise.kernels.ck import _depthwise
from tilewise.kernels.ck._ck_kernel import CONV_WIDTHS, CkKernel
from tilewise.ops import CHANNELS_LAST, Problem, Target, spatial_dims, stored_rows

CK_DTYPES: dict[str, tuple[str, ...]] = {"grouped_conv": ("bf16", "fp16"), "gemm": ("bf16", "fp16", "fp8")}

# Bytes of an operand's element; instances exist in more types than targets do.
ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "bf8": 1, "int8": 1}

WAVEFRONT = 64  # lanes of a warp on gfx9
VECTORS = (1, 2, 4, 8, 16)  # elements that a load or store can move
VECTOR_BYTES = 16  # the widest single load; sweeps are expanded with it
MAX_WARPS = 16  # a workgroup has at most 1024 lanes
MAX_ACCUMULATORS = 256  # 32-bit accumulation registers of a lane (CDNA 3 instruction set, AccVGPRs)


class Suffixes(NamedTuple):
    """The suffixes of a convolution's name after its pipeline."""

    scheduler: str
    double_smem_buffer: bool
    store_immediate: bool


_BOTH_MODES = tuple(Suffixes(*s) for s in product(("intrawave", "interwave"), (False, True), (False, True)))
_INTRAWAVE = tuple(s for s in _BOTH_MODES if s.scheduler == "intrawave")

# The suffix sets that exist for each pipeline. compv4 always has two buffers in shared memory.
SUFFIXES: dict[str, tuple[Suffixes, ...]] = {
    "basic_v1": _BOTH_MODES,
    "mem": _BOTH_MODES,
    "compv3": _INTRAWAVE,
    "compv4": tuple(s for s in _INTRAWAVE if s.double_smem_buffer),
    "compv5": _INTRAWAVE,
    "compv6": _INTRAWAVE,
    # Pipelines of instances converted from the old profiler; a sweep includes them only if it names them.
    "basic_async_v1": _INTRAWAVE,
    "compv1": _BOTH_MODES,
    "compv2": _BOTH_MODES,
}
SWEPT_PIPELINES = ("basic_v1", "mem", "compv3", "compv4", "compv5", "compv6")
SCHEDULERS = ("intrawave", "interwave")
CONV_PIPELINES = (*SUFFIXES, _depthwise.PIPELINE)
GEMM_PIPELINES = (*SUFFIXES, "preshufflev1", "preshufflev2")
INTRAWAVE_ONLY = tuple(p for p, sets in SUFFIXES.items() if sets == _INTRAWAVE or p == "compv4")
EPILOGUES = ("cshuffle", "default")

_VECTORS_IN_SUFFIX = re.compile(r"^[0-9]|(?:^|_)vec[0-9]")  # a fourth width, or misplaced widths
_SPLIT_IN_SUFFIX = re.compile(r"(?:^|_)splitk[0-9]")
_WIDE_RESULTS = ("fp32",)  # types whose results a split kernel adds one at a time


def illegal_reason(kernel: CkKernel, target: Target, arch: HardwareProfile) -> str | None:
    """Return why a configuration cannot run any problem of `target` on `arch`, or None if it can."""
    if target.dtype not in CK_DTYPES.get(target.op, ()):
        return f"there are no {target.dtype} kernels for {target.op}"
    if bool(kernel.ndim) != (target.op == "grouped_conv"):
        return f"it is not a kernel of {target.op}"
    if kernel.pipeline == _depthwise.PIPELINE and target.variant != "forward":
        return "depthwise kernels compute forward only"
    return build_fault(kernel, target.dtype, arch)


def name_fault(kernel: CkKernel) -> str | None:
    """Return why CK Tile has no kernel of this name on any arch, or None.

    Only malformed names are found: old tools measured kernels that :func:`build_fault` would refuse today.
    """
    pipelines = CONV_PIPELINES if kernel.ndim else GEMM_PIPELINES
    if kernel.pipeline not in pipelines:
        return f"its pipeline must be one of {', '.join(pipelines)}, got {kernel.pipeline!r}"
    sizes = [f"tile_{x}" for x in "mnk"]
    if not kernel.ndim:
        sizes += [f"{part}_{x}" for part in ("warp", "warp_tile") for x in "mnk"]
    for name in sizes:
        if getattr(kernel, name) < 1:
            return f"{name} must be at least 1, got {getattr(kernel, name)}"
    if _VECTORS_IN_SUFFIX.search(kernel.suffix):
        return f"vector widths must be _vecA_B_C, once and before any other suffix, got suffix {kernel.suffix!r}"
    if _SPLIT_IN_SUFFIX.search(kernel.suffix):
        return f"a split of K must be _splitkN, once and before other suffixes, got suffix {kernel.suffix!r}"
    return None


def build_fault(kernel: CkKernel, dtype: str, arch: HardwareProfile | None = None) -> str | None:
    """Return why CK Tile cannot build a kernel, or None if it can.

    Args:
        kernel: the kernel.
        dtype: element type of its operands.
        arch: the arch to build for; None checks only the rules that hold for every arch.
    """
    rules = _build_rules(kernel, dtype, arch)
    return next((reason for is_broken, reason in rules if is_broken), None)


def _build_rules(k: CkKernel, dtype: str, arch: HardwareProfile | None) -> Iterator[tuple[bool, str]]:
    """Yield (is broken, reason) for each rule."""
    if k.pipeline == _depthwise.PIPELINE and k.ndim:
        yield from _depthwise.build_rules(k)
        return
    yield min(k.tile_m, k.tile_n, k.tile_k) < 1, "tile sizes must be at least 1"
    yield from _trait_rules(k)
    yield from _vector_rules(k)
    by_pairs = k.split_k > 0 and k.vector_c == 1 and dtype not in _WIDE_RESULTS
    yield by_pairs, "vector_c must be even if K is split: 16-bit results are added in pairs"
    yield from _warp_rules(k)
    if arch is None:
        return
    if any(_warp_tile(k)) and dtype in arch.warp_tiles:
        known = arch.warp_tiles[dtype]
        shown = "x".join(map(str, _warp_tile(k)))
        yield list(_warp_tile(k)) not in [list(t) for t in known], f"{arch.name} has no {shown} warp tile for {dtype}"
    needed = shared_memory_bytes(k, dtype)
    have = arch.shared_memory_bytes
    yield needed > have, f"needs {needed} bytes of shared memory, {arch.name} has {have} per workgroup"


def _trait_rules(k: CkKernel) -> Iterator[tuple[bool, str]]:
    if k.ndim:
        yield k.pipeline not in SUFFIXES, f"pipeline must be one of {', '.join(SUFFIXES)}, got {k.pipeline!r}"
        stated = Suffixes(k.scheduler, k.double_smem_buffer, k.store_immediate)
        yield not _exists(k.pipeline, stated), f"{k.pipeline} does not exist with {_shown(stated)}"
    else:
        yield (
            k.pipeline not in GEMM_PIPELINES,
            f"pipeline must be one of {', '.join(GEMM_PIPELINES)}, got {k.pipeline!r}",
        )
        interwave = k.scheduler == "interwave" and k.pipeline in INTRAWAVE_ONLY
        yield interwave, f"{k.pipeline} does not exist with interwave"
    yield k.epilogue not in ("", *EPILOGUES), f"epilogue must be one of {', '.join(EPILOGUES)}, got {k.epilogue!r}"


def _exists(pipeline: str, stated: Suffixes) -> bool:
    """Return whether a suffix set of the pipeline matches; old names state no suffix at all, or no wave mode."""
    if stated == ("", False, False):
        return True
    return any(s[1:] == stated[1:] and stated.scheduler in ("", s.scheduler) for s in SUFFIXES[pipeline])


def _shown(suffixes: Suffixes) -> str:
    parts = (suffixes.scheduler, "dsb" * suffixes.double_smem_buffer, "si" * suffixes.store_immediate)
    return "_".join(p for p in parts if p)


def _vector_rules(k: CkKernel) -> Iterator[tuple[bool, str]]:
    widths = {"a": k.vector_a, "b": k.vector_b, "c": k.vector_c}
    for name, width in widths.items():
        shown = ", ".join(map(str, VECTORS))
        yield (
            width not in (0, *VECTORS),
            f"vector_{name} must be one of {shown} (hardware widths), got {width}",
        )
    for name, tile in (("a", k.tile_m), ("b", k.tile_n)):
        reach = WAVEFRONT * widths[name]
        side = {"a": "tile_m", "b": "tile_n"}[name]
        wide = k.ndim > 0 and 0 < reach < tile
        yield (
            wide,
            f"copying {name.upper()} needs more than one warp: {side} {tile} > {WAVEFRONT} x vector {widths[name]}",
        )


def _warp_rules(k: CkKernel) -> Iterator[tuple[bool, str]]:
    warps = (k.warp_m, k.warp_n, k.warp_k)
    if any(warps):
        yield not all(w > 0 and not w & (w - 1) for w in warps), "warps must be powers of two"
        count = k.warp_m * k.warp_n * k.warp_k
        yield count > MAX_WARPS, f"a block has at most {MAX_WARPS} warps, got {count}"
        accumulators = k.tile_m * k.tile_n // (k.warp_m * k.warp_n * WAVEFRONT)
        yield accumulators > MAX_ACCUMULATORS, f"a lane has at most {MAX_ACCUMULATORS} accumulators, got {accumulators}"
        if all(_warp_tile(k)):
            for axis, tile, across in zip("mnk", (k.tile_m, k.tile_n, k.tile_k), warps, strict=True):
                inner = across * getattr(k, f"warp_tile_{axis}")
                yield tile % inner != 0, f"warp_{axis} x warp_tile_{axis} = {inner} must divide tile_{axis} {tile}"


def _warp_tile(k: CkKernel) -> tuple[int, int, int]:
    return k.warp_tile_m, k.warp_tile_n, k.warp_tile_k


def shared_memory_bytes(kernel: KernelLike, dtype: str) -> Array:
    """Return the bytes of the operand tiles in shared memory: one A and one B tile per buffer.

    Args:
        kernel: a :class:`CkKernel`, or a namespace of its columns as arrays; the result is then an array too.
        dtype: element type of the operands.
    """
    buffers = 1 + (kernel.double_smem_buffer | (kernel.pipeline == "compv4"))
    return buffers * (kernel.tile_m + kernel.tile_n) * kernel.tile_k * ELEMENT_BYTES.get(dtype, 2)


class Shape(NamedTuple):
    """The division of a block's tile: warps, tile of one matrix instruction, widths of loads and stores."""

    warps: tuple[int, int, int]
    warp_tile: tuple[int, int, int]
    vectors: tuple[int, int, int]


@cache
def _square_tiles(tiles: tuple[tuple[int, int, int], ...]) -> tuple[tuple[int, int, int], ...]:
    return tuple(t for t in tiles if t[0] == t[1])


def shape_of(tile: tuple[int, int, int], dtype: str, arch: HardwareProfile) -> Shape | None:
    """Return the division that a sweep gives a tile: exactly one, since names do not state it.

    Among square matrix instructions and up to four warps that divide the tile, prefer most warps, then the largest
    instruction, then the squarest share of a warp. Vectors are as wide as one load, as long as every lane has one.

    Args:
        tile: (M, N, K).
        dtype: element type of the operands.
        arch: the arch whose matrix instructions to use.

    Returns:
        The division, or None if no instruction divides the tile.
    """
    tiles = _square_tiles(tuple((t[0], t[1], t[2]) for t in arch.warp_tiles.get(dtype, ())))
    found = [
        ((warp_m, warp_n, 1), inner)
        for warp_m, warp_n in ((1, 1), (1, 2), (2, 1), (2, 2), (1, 4), (4, 1))
        for inner in tiles
        if tile[0] % (warp_m * inner[0]) == 0 and tile[1] % (warp_n * inner[1]) == 0 and tile[2] % inner[2] == 0
    ]
    if not found:
        return None
    warps, inner = max(
        found,
        key=lambda f: (f[0][0] * f[0][1], f[1], -abs(log2(tile[0] / f[0][0] / (tile[1] / f[0][1]))), f[0]),
    )
    lanes = warps[0] * warps[1] * WAVEFRONT
    copies = (tile[0] * tile[2], tile[1] * tile[2], tile[0] * tile[1])
    widest = VECTOR_BYTES // ELEMENT_BYTES[dtype]
    a, b, c = (max(v for v in VECTORS if v == 1 or v <= min(widest, size // lanes)) for size in copies)
    return Shape(warps, inner, (a, b, c))


# ---- supported problems ----------------------------------------------------------------------------------------------


def support_checks(kernel: KernelLike, problem: Problem, variant: str, dtype: str) -> Rules:
    """Yield the rules that decide whether a kernel supports a problem, as (is broken, reason).

    Args:
        kernel: a :class:`CkKernel`, or a namespace of its columns as arrays; `is broken` is then an array too.
        problem: the problem.
        variant: the variant of its op.
        dtype: the type of the operands; no rule depends on it, because a kernel states how wide its loads are.
    """
    if problem.op == "grouped_conv":
        yield from _conv_checks(kernel, problem, variant)
    elif problem.op == "gemm":
        yield from _gemm_checks(kernel, problem)
    else:
        yield True, f"CK Tile has no kernels for op {problem.op}"


def _conv_checks(kernel: KernelLike, p: ProblemLike, variant: str) -> Rules:
    yield kernel.ndim < spatial_dims(p), "a 2d kernel has no depth"
    depthwise = np.asarray(kernel.pipeline == _depthwise.PIPELINE)
    if depthwise.any():
        for broken, reason in _depthwise.checks(kernel, p, variant):
            yield depthwise & broken, reason
    if not depthwise.all():
        for broken, reason in _implicit_gemm_checks(kernel, p, variant):
            yield ~depthwise & broken, reason


def _implicit_gemm_checks(kernel: KernelLike, p: ProblemLike, variant: str) -> Rules:
    yield p.layout != CHANNELS_LAST, "CK Tile kernels take channels last (NHWGC) only"
    merged = np.maximum(kernel.num_groups_to_merge, 1)
    yield p.G % merged != 0, "the groups to merge must divide the groups"
    c, k = p.C // p.G, p.K // p.G
    # Contiguous elements of A, B and the result: the channels of one group, or of several if they are merged.
    contiguous = {"forward": (c, c, k), "bwd_data": (k, c, c), "bwd_weight": (k, c, c)}[variant]
    for name, size, unstated in zip("abc", contiguous, CONV_WIDTHS, strict=True):
        stated = getattr(kernel, f"vector_{name}")
        vector = np.where(stated == 0, unstated, stated)
        yield (merged == 1) & (size % vector != 0), f"vector_{name} must divide a group's channels"


def _gemm_checks(kernel: KernelLike, p: ProblemLike) -> Rules:
    yield (kernel.gemm_layout != p.layout) & (kernel.gemm_layout != ""), "the kernel is compiled for another layout"
    for name, size in (("m", p.M), ("n", p.N), ("k", p.K)):
        ragged = size % np.maximum(getattr(kernel, f"tile_{name}"), 1) != 0
        yield np.logical_not(getattr(kernel, f"pad_{name}")) & ragged, f"tile_{name} must divide {name.upper()}"
    parts, step = np.maximum(kernel.split_k, 1), np.maximum(kernel.warp_tile_k, 1)
    ragged = p.K % (np.maximum(kernel.tile_k, 1) * parts) != 0
    yield np.logical_not(kernel.pad_k) & ragged, "split_k x tile_k must divide K"
    share = -(-p.K // (parts * step)) * step  # of all parts but the last, in whole matrix instructions
    yield share * (parts - 1) >= p.K, "split_k leaves a part of K empty"
    for name, size in stored_rows(p).items():
        yield size % np.maximum(getattr(kernel, f"vector_{name}"), 1) != 0, f"vector_{name} must divide a row"

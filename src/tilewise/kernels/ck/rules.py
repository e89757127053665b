"""The one place that says which CK Tile kernels are legal on an arch, and which problems a kernel supports.

What a kernel does not tell (0 or "", see :class:`~tilewise.kernels.ck.kernel.CkKernel`) breaks no rule. Figures of an
arch (shared memory, warps, the tiles of its matrix instructions) come from ``conf/arch``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from itertools import product
from math import log2
from typing import Any, NamedTuple

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.kernels.ck.kernel import CkKernel
from tilewise.ops import Problem, Target
from tilewise.ops.gemm import stored_rows
from tilewise.ops.grouped_conv import spatial_dims

DTYPES: dict[str, tuple[str, ...]] = {"grouped_conv": ("bf16", "fp16"), "gemm": ("bf16", "fp16", "fp8")}

# Bytes of an operand's element; instances come in more types than there are targets.
ELEMENT_BYTES = {"fp32": 4, "bf16": 2, "fp16": 2, "fp8": 1, "bf8": 1, "int8": 1}

WAVEFRONT = 64  # lanes of a warp on gfx9
VECTORS = (1, 2, 4, 8, 16)  # elements that a load or store can move
VECTOR_BYTES = 16  # the widest single load; what the expansion takes
MAX_WARPS = 16  # a workgroup has at most 1024 lanes
MAX_ACCUMULATORS = 256  # 32-bit accumulation registers of a lane (CDNA 3 instruction set, AccVGPRs)


class Suffixes(NamedTuple):
    """What a convolution's name tells behind its pipeline."""

    scheduler: str
    double_smem_buffer: bool
    store_immediate: bool


_BOTH_MODES = tuple(Suffixes(*s) for s in product(("intrawave", "interwave"), (False, True), (False, True)))
_INTRAWAVE = tuple(s for s in _BOTH_MODES if s.scheduler == "intrawave")

# The suffix sets that exist for each pipeline. compv4 is built on two buffers in shared memory.
SUFFIXES: dict[str, tuple[Suffixes, ...]] = {
    "basic_v1": _BOTH_MODES,
    "mem": _BOTH_MODES,
    "compv3": _INTRAWAVE,
    "compv4": tuple(s for s in _INTRAWAVE if s.double_smem_buffer),
    "compv5": _INTRAWAVE,
    "compv6": _INTRAWAVE,
    # Pipelines that instances converted from the old profiler have; sweeps leave them out unless asked for.
    "basic_async_v1": _INTRAWAVE,
    "compv1": _BOTH_MODES,
    "compv2": _BOTH_MODES,
}
SWEPT_PIPELINES = ("basic_v1", "mem", "compv3", "compv4", "compv5", "compv6")
SCHEDULERS = ("intrawave", "interwave")
GEMM_PIPELINES = (*SUFFIXES, "preshufflev1", "preshufflev2")
INTRAWAVE_ONLY = tuple(p for p, sets in SUFFIXES.items() if sets == _INTRAWAVE or p == "compv4")
EPILOGUES = ("cshuffle", "default")


def illegal(kernel: CkKernel, target: Target, arch: HardwareProfile) -> str | None:
    """Why this configuration cannot run for `target` on `arch` whatever the problem, or None."""
    if target.dtype not in DTYPES.get(target.op, ()):
        return f"there are no {target.dtype} kernels for {target.op}"
    if bool(kernel.ndim) != (target.op == "grouped_conv"):
        return f"it is no kernel of {target.op}"
    return impossible(kernel, target.dtype, arch)


def impossible(kernel: CkKernel, dtype: str, arch: HardwareProfile | None = None) -> str | None:
    """Why CK Tile cannot build this kernel; without `arch`: why it can for no arch. None if all is well."""
    rules = _broken(kernel, dtype, arch)
    return next((reason for broken, reason in rules if broken), None)


def _broken(k: CkKernel, dtype: str, arch: HardwareProfile | None) -> Iterator[tuple[bool, str]]:
    yield min(k.tile_m, k.tile_n, k.tile_k) < 1, "tile sizes must be at least 1"
    yield from _traits(k)
    yield from _vectors(k)
    yield from _warps(k)
    if arch is None:
        return
    if any(_warp_tile(k)) and dtype in arch.warp_tiles:
        known = arch.warp_tiles[dtype]
        shown = "x".join(map(str, _warp_tile(k)))
        yield list(_warp_tile(k)) not in [list(t) for t in known], f"{arch.name} has no {shown} warp tile for {dtype}"
    needed = shared_memory_bytes(k, dtype)
    have = arch.shared_memory_bytes
    yield needed > have, f"needs {needed} bytes of shared memory, {arch.name} has {have} a workgroup"


def _traits(k: CkKernel) -> Iterator[tuple[bool, str]]:
    if k.ndim:
        yield k.pipeline not in SUFFIXES, f"pipeline must be one of {', '.join(SUFFIXES)}, got {k.pipeline!r}"
        told = Suffixes(k.scheduler, k.double_smem_buffer, k.store_immediate)
        yield not _exists(k.pipeline, told), f"{k.pipeline} does not exist with {_shown(told)}"
    else:
        yield (
            k.pipeline not in GEMM_PIPELINES,
            f"pipeline must be one of {', '.join(GEMM_PIPELINES)}, got {k.pipeline!r}",
        )
        interwave = k.scheduler == "interwave" and k.pipeline in INTRAWAVE_ONLY
        yield interwave, f"{k.pipeline} does not exist with interwave"
    yield k.epilogue not in ("", *EPILOGUES), f"epilogue must be one of {', '.join(EPILOGUES)}, got {k.epilogue!r}"


def _exists(pipeline: str, told: Suffixes) -> bool:
    """Whether a suffix set exists that what is told belongs to; old names tell nothing, or no wave mode."""
    if told == ("", False, False):
        return True
    return any(s[1:] == told[1:] and told.scheduler in ("", s.scheduler) for s in SUFFIXES[pipeline])


def _shown(told: Suffixes) -> str:
    parts = (told.scheduler, "dsb" * told.double_smem_buffer, "si" * told.store_immediate)
    return "_".join(p for p in parts if p)


def _vectors(k: CkKernel) -> Iterator[tuple[bool, str]]:
    widths = {"a": k.vector_a, "b": k.vector_b, "c": k.vector_c}
    for name, width in widths.items():
        shown = ", ".join(map(str, VECTORS))
        yield width not in (0, *VECTORS), f"vector_{name} must be one of {shown} (what hardware moves), got {width}"
    for name, tile in (("a", k.tile_m), ("b", k.tile_n)):
        reach = WAVEFRONT * widths[name]
        side = {"a": "tile_m", "b": "tile_n"}[name]
        wide = k.ndim > 0 and 0 < reach < tile
        yield (
            wide,
            f"copying {name.upper()} needs more than one warp: {side} {tile} > {WAVEFRONT} x vector {widths[name]}",
        )


def _warps(k: CkKernel) -> Iterator[tuple[bool, str]]:
    warps = (k.warp_m, k.warp_n, k.warp_k)
    if any(warps):
        yield not all(w > 0 and not w & (w - 1) for w in warps), "warps must be powers of two"
        count = k.warp_m * k.warp_n * k.warp_k
        yield count > MAX_WARPS, f"{count} warps, more than {MAX_WARPS}"
        accumulators = k.tile_m * k.tile_n // (k.warp_m * k.warp_n * WAVEFRONT)
        yield accumulators > MAX_ACCUMULATORS, f"{accumulators} accumulators a lane, more than {MAX_ACCUMULATORS}"
        if all(_warp_tile(k)):
            for axis, tile, across in zip("mnk", (k.tile_m, k.tile_n, k.tile_k), warps, strict=True):
                inner = across * getattr(k, f"warp_tile_{axis}")
                yield tile % inner != 0, f"warp_{axis} x warp_tile_{axis} = {inner} must divide tile_{axis} {tile}"


def _warp_tile(k: CkKernel) -> tuple[int, int, int]:
    return k.warp_tile_m, k.warp_tile_n, k.warp_tile_k


def shared_memory_bytes(kernel: Any, dtype: str) -> Any:
    """Bytes of the operand tiles in shared memory: one A and one B tile, twice where there are two buffers.

    `kernel` is a :class:`CkKernel`, or a namespace of its columns as arrays.
    """
    buffers = 1 + (kernel.double_smem_buffer | (kernel.pipeline == "compv4"))
    return buffers * (kernel.tile_m + kernel.tile_n) * kernel.tile_k * ELEMENT_BYTES.get(dtype, 2)


class Shape(NamedTuple):
    """How a block's tile is shared out: warps, tile of one matrix instruction, widths of loads and stores."""

    warps: tuple[int, int, int]
    warp_tile: tuple[int, int, int]
    vectors: tuple[int, int, int]


@cache
def _square_tiles(tiles: tuple[tuple[int, int, int], ...]) -> tuple[tuple[int, int, int], ...]:
    return tuple(t for t in tiles if t[0] == t[1])


def shape_of(tile: tuple[int, int, int], dtype: str, arch: HardwareProfile) -> Shape | None:
    """The shape that a sweep gives a tile: names tell none, so there is one a tile.

    Of the square matrix instructions and up to four warps that divide the tile: most warps, then the largest
    instruction, then the squarest share of a warp; vectors as wide as one load, as long as every lane has one.
    None where no instruction divides the tile.
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


# ---- what a kernel supports ------------------------------------------------------------------------------------------


def checks(kernel: Any, problem: Problem, variant: str) -> Iterator[tuple[Any, str]]:
    """The rules of what a kernel supports, as (broken, reason).

    Args:
        kernel: a :class:`CkKernel`, or a namespace of its columns as arrays; then `broken` is an array too.
        problem: the shape.
        variant: the variant of its op.
    """
    if problem.op == "grouped_conv":
        yield from _conv(kernel, problem, variant)
    elif problem.op == "gemm":
        yield from _gemm(kernel, problem)
    else:
        yield True, f"CK Tile has no kernels for op {problem.op}"


def _conv(kernel: Any, p: Any, variant: str) -> Iterator[tuple[Any, str]]:
    yield kernel.ndim < spatial_dims(p), "a 2d kernel has no depth"
    merged = np.maximum(kernel.num_groups_to_merge, 1)
    yield p.G % merged != 0, "the groups to merge must divide the groups"
    c, k = p.C // p.G, p.K // p.G
    # what lies next to each other in A, B and the result: channels of one group, of several if these are merged
    contiguous = {"forward": (c, c, k), "bwd_data": (k, c, c), "bwd_weight": (k, c, c)}[variant]
    for name, size in zip("abc", contiguous, strict=True):
        vector = np.maximum(getattr(kernel, f"vector_{name}"), 1)
        yield (merged == 1) & (size % vector != 0), f"vector_{name} must divide a group's channels"


def _gemm(kernel: Any, p: Any) -> Iterator[tuple[Any, str]]:
    yield (kernel.gemm_layout != p.layout) & (kernel.gemm_layout != ""), "the kernel is compiled for another layout"
    for name, size in (("m", p.M), ("n", p.N), ("k", p.K)):
        ragged = size % np.maximum(getattr(kernel, f"tile_{name}"), 1) != 0
        yield np.logical_not(getattr(kernel, f"pad_{name}")) & ragged, f"tile_{name} must divide {name.upper()}"
    for name, size in stored_rows(p).items():
        yield size % np.maximum(getattr(kernel, f"vector_{name}"), 1) != 0, f"vector_{name} must divide a row"

"""Labels of problems, for counting a set and for comparing its training and validation problems."""

from __future__ import annotations

from math import log10

from tilewise.collect._plan import Item
from tilewise.ops import GemmProblem, GroupedConvProblem

# Origins of generated problems begin so; all others name a network or a model.
_GENERATED = ("synthetic", "edge", "square", "skinny", "random")


def problem_labels(item: Item) -> frozenset[str]:
    """Return every label of an item: its class of origin, its kinds, and the decade of its FLOPs."""
    p = item.problem
    kinds = _conv(p) if isinstance(p, GroupedConvProblem) else _gemm(p) if isinstance(p, GemmProblem) else set()
    return frozenset({f"origin: {origin_class(item.origin)}", f"FLOPs: {_decade(p.flops)}", *kinds})


def origin_class(origin: str) -> str:
    """Return the origin of a generated problem, e.g. ``edge`` or ``skinny/rows``, and ``model`` for a real one."""
    return origin if origin.startswith(_GENERATED) else "model"


def _decade(flops: int) -> str:
    if flops < 1e6:
        return "below 1e06 (tiny)"
    exponent = int(log10(flops))
    return "1e11 and more (huge)" if exponent >= 11 else f"1e{exponent:02d} to 1e{exponent + 1:02d}"


def _conv(p: GroupedConvProblem) -> set[str]:
    taps, width = p.Z * p.Y * p.X, p.C // p.G
    found = {
        "kind: 3D": p.ndim == 3,
        "kind: depthwise": p.G == p.C > 1,
        "kind: grouped": 1 < p.G < p.C,
        "kind: grouped, width no multiple of 8": 1 < p.G < p.C and width % 8 > 0,
        "kind: pointwise": p.G == 1 and taps == 1,
        "kind: dense filter": p.G == 1 and taps > 1,
        "kind: strided": max(p.stride_d, p.stride_h, p.stride_w) > 1,
        "kind: dilated": max(p.dilation_d, p.dilation_h, p.dilation_w) > 1,
        "channels: odd": bool(p.C % 8 or p.K % 8),
        "image: below 100 pixels": p.Di * p.Hi * p.Wi < 100,
        "image: 10,000 pixels and more": p.Di * p.Hi * p.Wi >= 10_000,
        "batch: 1": p.N == 1,
        "batch: 32 and more": p.N >= 32,
    }
    return {label for label, fits in found.items() if fits}


def _gemm(p: GemmProblem) -> set[str]:
    found = {
        f"layout: {p.layout}": True,
        "kind: M or N up to 16": min(p.M, p.N) <= 16,
        "kind: M from 1000": p.M >= 1000,
        "kind: K up to 128": p.K <= 128,
        "kind: K from 8192": p.K >= 8192,
        "sizes: not all multiples of 16": any(size % 16 for size in (p.M, p.N, p.K)),
    }
    return {label for label, fits in found.items() if fits}

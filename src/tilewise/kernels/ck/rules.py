"""The one place that says which CK Tile kernels are legal on an arch, and which problems a kernel supports.

What a kernel does not tell (0 or "", see :class:`~tilewise.kernels.ck.kernel.CkKernel`) breaks no rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.kernels.ck.kernel import CkKernel
from tilewise.ops import GemmProblem, GroupedConvProblem, Problem, Target

DTYPES: dict[str, tuple[str, ...]] = {"grouped_conv": ("bf16", "fp16"), "gemm": ("bf16", "fp16", "fp8")}


def illegal(kernel: CkKernel, target: Target, arch: HardwareProfile) -> str | None:
    """Why this configuration cannot run for `target` on `arch` whatever the problem, or None."""
    if min(kernel.tile_m, kernel.tile_n, kernel.tile_k) < 1:
        return "tile sizes must be at least 1"
    if target.dtype not in DTYPES[target.op]:
        return f"there are no {target.dtype} kernels for {target.op}"
    return None


def checks(kernel: Any, problem: Problem, variant: str) -> Iterator[tuple[Any, str]]:
    """The rules of what a kernel supports, as (broken, reason).

    Args:
        kernel: a :class:`CkKernel`, or a namespace of its columns as arrays; then `broken` is an array too.
        problem: the shape.
        variant: the variant of its op.
    """
    if isinstance(problem, GroupedConvProblem):
        yield from _conv(kernel, problem, variant)
    elif isinstance(problem, GemmProblem):
        yield from _gemm(kernel, problem)
    else:
        yield True, f"CK Tile has no kernels for op {problem.op}"


def _conv(kernel: Any, p: GroupedConvProblem, variant: str) -> Iterator[tuple[Any, str]]:
    yield kernel.ndim < p.ndim, "a 2d kernel has no depth"
    merged = np.maximum(kernel.num_groups_to_merge, 1)
    yield p.G % merged != 0, "the groups to merge must divide the groups"
    c, k = p.C // p.G, p.K // p.G
    # what lies next to each other in A, B and the result: channels of one group, of several if these are merged
    contiguous = {"forward": (c, c, k), "bwd_data": (k, c, c), "bwd_weight": (k, c, c)}[variant]
    for name, size in zip("abc", contiguous, strict=True):
        vector = np.maximum(getattr(kernel, f"vector_{name}"), 1)
        yield (merged == 1) & (size % vector != 0), f"vector_{name} must divide a group's channels"


def _gemm(kernel: Any, p: GemmProblem) -> Iterator[tuple[Any, str]]:
    yield (kernel.gemm_layout != p.layout) & (kernel.gemm_layout != ""), "the kernel is compiled for another layout"
    for name, size in (("m", p.M), ("n", p.N), ("k", p.K)):
        ragged = size % np.maximum(getattr(kernel, f"tile_{name}"), 1) != 0
        yield np.logical_not(getattr(kernel, f"pad_{name}")) & ragged, f"tile_{name} must divide {name.upper()}"
    rows = (p.K if p.layout[0] == "r" else p.M, p.N if p.layout[1] == "r" else p.K, p.N if p.layout[2] == "r" else p.M)
    for name, size in zip("abc", rows, strict=True):
        yield size % np.maximum(getattr(kernel, f"vector_{name}"), 1) != 0, f"vector_{name} must divide a row"

"""Padding of matrix products that no kernel supports: zeros enlarge the operands, and the result is cut.

CK Tile's kernels without padding compute only sizes that their tiles divide. Zeros along K add nothing to the result,
and those along M and N give rows and columns that are cut off.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from math import ceil, lcm

import numpy as np

from tilewise.dispatch.launching._launchers import Tensor
from tilewise.kernels import Shape
from tilewise.kernels.ck import CkKernel
from tilewise.ops import GemmProblem, Problem, stored_rows


def padded_problems(problem: Problem, kernels: Iterable[CkKernel]) -> list[GemmProblem]:
    """Return the smallest larger problem that each kernel supports, the fewest FLOPs first.

    Args:
        problem: an unsupported problem. Only matrix products are padded; other ops give an empty list.
        kernels: the kernels, of any layout.
    """
    if not isinstance(problem, GemmProblem):
        return []
    fitting = [kernel for kernel in kernels if kernel.gemm_layout == problem.layout]
    return sorted({_padded(problem, kernel) for kernel in fitting}, key=lambda p: (p.flops, p.M, p.N))


def _padded(problem: GemmProblem, kernel: CkKernel) -> GemmProblem:
    """Enlarge each size to a multiple of the tile, unless the kernel pads it itself, and of the vectors along it.

    Every part of a split K takes whole tiles.
    """
    multiple = {
        size: 1 if getattr(kernel, f"pad_{size.lower()}") else getattr(kernel, f"tile_{size.lower()}") for size in "MNK"
    }
    multiple["K"] *= 1 if kernel.pad_k else max(kernel.split_k, 1)
    rows = stored_rows(replace(problem, M=1, N=2, K=3))  # tells which size is contiguous in each matrix
    for matrix, marked in rows.items():
        size = "MNK"[int(marked) - 1]
        multiple[size] = lcm(multiple[size], max(getattr(kernel, f"vector_{matrix}"), 1))
    return replace(problem, **{s: ceil(getattr(problem, s) / m) * m for s, m in multiple.items()})


def enlarged(array: Tensor, shape: Shape) -> Tensor:
    """Return a copy of a NumPy array or PyTorch tensor with zeros after the end of each axis."""
    large = np.zeros(shape, array.dtype) if isinstance(array, np.ndarray) else array.new_zeros(shape)
    large[tuple(slice(length) for length in array.shape)] = array
    return large


def cut_into(out: Tensor, large: Tensor) -> None:
    """Copy the beginning of each axis of a larger result into `out`."""
    out[...] = large[tuple(slice(length) for length in out.shape)]

"""Padding of problems that no kernel supports: zeros enlarge the operands, and the result is cut.

CK Tile's kernels without padding compute only matrix products whose sizes their tiles divide. Zeros along K add nothing
to the result, and those along M and N give rows and columns that are cut off. Its convolutions need channels that their
vector widths divide, so each group gets channels of zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from math import ceil, lcm
from typing import NamedTuple, Self

import numpy as np

from tilewise.dispatch.launching._launchers import Tensor
from tilewise.kernels import Shape
from tilewise.kernels.ck import VECTORS, CkKernel
from tilewise.ops import GemmProblem, GroupedConvProblem, Problem, stored_rows


def padded_problems(problem: Problem, kernels: Iterable[CkKernel]) -> Sequence[Problem]:
    """Return larger problems that kernels may support, the fewest FLOPs first.

    Args:
        problem: an unsupported problem. Of a matrix product, the smallest larger one that each kernel supports is
            returned; of a convolution, those whose channels a vector width divides, since names do not state the width.
        kernels: the kernels, of any layout.
    """
    if isinstance(problem, GroupedConvProblem):
        return _wider_convolutions(problem)
    if not isinstance(problem, GemmProblem):
        return []
    fitting = [kernel for kernel in kernels if kernel.gemm_layout == problem.layout]
    return sorted({_padded(problem, kernel) for kernel in fitting}, key=lambda p: (p.flops, p.M, p.N))


def _wider_convolutions(problem: GroupedConvProblem) -> Sequence[GroupedConvProblem]:
    """Return the convolution with the inputs and outputs of each group enlarged to multiples of vector widths."""
    groups = problem.G
    inputs, outputs = ({ceil(n / groups / v) * v * groups for v in VECTORS} for n in (problem.C, problem.K))
    wider = {replace(problem, C=c, K=k) for c in inputs for k in outputs} - {problem}
    return sorted(wider, key=lambda p: (p.flops, p.C, p.K))


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


class Groups(NamedTuple):
    """The axis of a tensor that holds all groups one after the other, and their number."""

    axis: int
    number: int

    @classmethod
    def of(cls, name: str, problem: Problem) -> Self:
        """Return those of a tensor of :data:`tilewise.kernels.TENSORS`: rows of a filter, channels of an image."""
        return cls(0 if name in ("w", "dw") else -1, getattr(problem, "G", 1))

    def split(self, shape: Shape) -> Shape:
        """Return the shape with the axis as two: groups, and the length of one."""
        axis = self.axis % len(shape)
        return (*shape[:axis], self.number, shape[axis] // self.number, *shape[axis + 1 :])


def enlarged(array: Tensor, shape: Shape, groups: Groups) -> Tensor:
    """Return a copy of a NumPy array or PyTorch tensor with zeros after the end of each axis and of each group.

    Args:
        array: the array, which may lack the depth axis of `shape`.
        shape: the shape of the copy.
        groups: of the array.
    """
    if len(array.shape) < len(shape):
        shape = (shape[0], *shape[2:])
    large = np.zeros(shape, array.dtype) if isinstance(array, np.ndarray) else array.new_zeros(shape)
    small = array.reshape(groups.split(tuple(array.shape)))
    large.reshape(groups.split(shape))[tuple(slice(length) for length in small.shape)] = small
    return large


def cut_into(out: Tensor, large: Tensor, groups: Groups) -> None:
    """Copy the beginning of each axis and of each group of a larger result into `out`, which is contiguous."""
    small = out.reshape(groups.split(tuple(out.shape)))
    small[...] = large.reshape(groups.split(tuple(large.shape)))[tuple(slice(length) for length in small.shape)]

"""Views of tensors in two layouts: as kernels read them, and as PyTorch has them.

Kernels read what lies in memory: channels are the last axis of a convolution's tensors, and a transposed operand of a
product is the matrix that it transposes. PyTorch has the channels second, and (M, K) and (K, N) in whatever order.
The tensors of an epilogue follow the operands. A bias is the same in both layouts, as the result of a product is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from tilewise.ops import GemmProblem, GroupedConvProblem, Problem

if TYPE_CHECKING:
    from torch import Tensor

_TO_LAST = {4: (0, 2, 3, 1), 5: (0, 2, 3, 4, 1)}  # by number of axes
_TO_SECOND = {4: (0, 3, 1, 2), 5: (0, 4, 1, 2, 3)}
_BIAS_AXES = 1


def channels_last_view(t: Tensor) -> Tensor:
    """Return a view of a convolution's tensor that has the channels second, with the channels last."""
    return t.permute(_TO_LAST[t.dim()])


def channels_second_view(t: Tensor) -> Tensor:
    """Return a view of a convolution's tensor that has the channels last, with the channels second."""
    return t.permute(_TO_SECOND[t.dim()])


def stored_views(problem: Problem, tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return tensors that PyTorch has as kernels read them; no 2D convolution has a depth axis."""
    if isinstance(problem, GemmProblem):
        return _matrices(problem, tensors)
    return [t if t.dim() == _BIAS_AXES else channels_last_view(t) for t in tensors]


def torch_views(problem: Problem, tensors: Iterable[Tensor]) -> list[Tensor]:
    """Return tensors that kernels read as PyTorch has them; a depth axis of a 2D convolution is left out."""
    if isinstance(problem, GemmProblem):
        return _matrices(problem, tensors)
    assert isinstance(problem, GroupedConvProblem)
    flat = (t.squeeze(1) if t.dim() > problem.ndim + 2 else t for t in tensors)
    return [t if t.dim() == _BIAS_AXES else channels_second_view(t) for t in flat]


def torch_sizes(problem: Problem, shape: Sequence[int]) -> tuple[int, ...]:
    """Return the sizes that PyTorch's tensor has for a shape that kernels read, with all axes."""
    if isinstance(problem, GemmProblem):
        return tuple(shape)
    assert isinstance(problem, GroupedConvProblem)
    return (shape[0], shape[-1], *shape[len(shape) - 1 - problem.ndim : -1])


def _matrices(problem: GemmProblem, tensors: Iterable[Tensor]) -> list[Tensor]:
    a, b, *rest = tensors
    return [*(t if letter == "r" else t.T for t, letter in zip((a, b), problem.layout, strict=False)), *rest]

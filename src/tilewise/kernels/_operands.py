"""The tensors of each (op, variant), for all backends: names and shapes of the operands and of the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tilewise.kernels._formulas import ProblemLike
from tilewise.ops import GemmProblem, GroupedConvProblem

Shape = tuple[int, ...]


class Tensors(NamedTuple):
    """The operands and the result of a kernel; all contiguous.

    Attributes:
        names: of the operands and of the result.
        operands: problem -> shapes of the operands.
        result: problem -> shape of the result.
    """

    names: tuple[str, ...]
    operands: Callable[[ProblemLike], tuple[Shape, ...]]
    result: Callable[[ProblemLike], Shape]


def accepted_shapes(tensors: Tensors, problem: ProblemLike) -> dict[tuple[Shape, ...], Shape]:
    """Return accepted shapes of the operands -> of the result; for 2D convolution also without the depth axis."""
    operands, result = tensors.operands(problem), tensors.result(problem)
    shapes = {operands: result}
    if getattr(problem, "ndim", 3) == 2:
        shapes[tuple(_flat(shape) for shape in operands)] = _flat(result)
    return shapes


def _flat(shape: Shape) -> Shape:
    return (shape[0], *shape[2:])


def _input(p: GroupedConvProblem) -> Shape:
    return (p.N, p.Di, p.Hi, p.Wi, p.C)


def _filter(p: GroupedConvProblem) -> Shape:
    return (p.K, p.Z, p.Y, p.X, p.C // p.G)


def _output(p: GroupedConvProblem) -> Shape:
    return (p.N, *p.output_sizes, p.K)


def _matrices(p: GemmProblem) -> tuple[Shape, Shape]:
    """Return the shapes of A and B as stored."""
    return (p.M, p.K) if p.layout[0] == "r" else (p.K, p.M), (p.K, p.N) if p.layout[1] == "r" else (p.N, p.K)


TENSORS: dict[tuple[str, str], Tensors] = {
    ("grouped_conv", "forward"): Tensors(("x", "w", "y"), lambda p: (_input(p), _filter(p)), _output),
    ("grouped_conv", "bwd_data"): Tensors(("dy", "w", "dx"), lambda p: (_output(p), _filter(p)), _input),
    ("grouped_conv", "bwd_weight"): Tensors(("dy", "x", "dw"), lambda p: (_output(p), _input(p)), _filter),
    ("gemm", "universal"): Tensors(("a", "b", "c"), _matrices, lambda p: (p.M, p.N)),
}

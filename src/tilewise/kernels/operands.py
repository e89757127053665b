"""The tensors of each (op, variant), whoever makes the kernels: names and shapes of the operands and of the result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from tilewise.ops import GemmProblem, GroupedConvProblem

Shape = tuple[int, ...]


class Tensors(NamedTuple):
    """What a kernel reads and writes; all contiguous."""

    names: tuple[str, ...]  # of the operands and of the result
    operands: Callable[[Any], tuple[Shape, ...]]  # problem -> shapes of the operands
    result: Callable[[Any], Shape]  # problem -> shape of the result


def forms(tensors: Any, problem: Any) -> dict[tuple[Shape, ...], Shape]:
    """Shapes of the operands -> of the result: all with the depth axis, or for 2D convolution all without."""
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
    """A and B as stored."""
    return (p.M, p.K) if p.layout[0] == "r" else (p.K, p.M), (p.K, p.N) if p.layout[1] == "r" else (p.N, p.K)


TENSORS: dict[tuple[str, str], Tensors] = {
    ("grouped_conv", "forward"): Tensors(("x", "w", "y"), lambda p: (_input(p), _filter(p)), _output),
    ("grouped_conv", "bwd_data"): Tensors(("dy", "w", "dx"), lambda p: (_output(p), _filter(p)), _input),
    ("grouped_conv", "bwd_weight"): Tensors(("dy", "x", "dw"), lambda p: (_output(p), _input(p)), _filter),
    ("gemm", "universal"): Tensors(("a", "b", "c"), _matrices, lambda p: (p.M, p.N)),
}

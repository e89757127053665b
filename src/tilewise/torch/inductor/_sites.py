"""Convolutions and matrix products in an ATen graph, as problems with their operands."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, fx

from tilewise.ops import GroupedConvProblem, Problem
from tilewise.torch import _operators as operators
from tilewise.torch._serving import DEVICE_TYPE, DTYPES, target_name

aten = torch.ops.aten
CONVOLUTION, CONVOLUTION_BACKWARD = aten.convolution.default, aten.convolution_backward.default
PRODUCTS = (aten.mm.default, aten.addmm.default)

Geometry = tuple[list[int], list[int], list[int], int]  # stride, padding, dilation, groups


@dataclass(frozen=True)
class Site:
    """A node that a kernel can compute.

    Attributes:
        node: the convolution, its backward pass, or the product.
        variant: of the target.
        problem: the problem that the operands pose.
        operands: the nodes of the two tensors, as tilewise's operator takes them.
        rest: the operator's arguments after the tensors.
        bias: node of the bias that `node` adds.
        residual: node of the matrix that `node` adds.
    """

    node: fx.Node
    variant: str
    problem: Problem
    operands: tuple[fx.Node, fx.Node]
    rest: tuple[object, ...] = ()
    bias: fx.Node | None = None
    residual: fx.Node | None = None

    @property
    def is_product(self) -> bool:
        """Return whether it is a matrix product."""
        return self.variant == "universal"

    @property
    def target(self) -> str:
        """Return the name of the target."""
        value = value_of(self.operands[0])
        return target_name(self.problem.op, self.variant, value.dtype, value.device)


def value_of(node: fx.Node) -> Tensor:
    """Return the fake tensor of a node that gives one tensor."""
    value: Tensor = node.meta["val"]
    return value


def forward_site(node: fx.Node) -> Site | None:
    """Return the site of a node, or None if it is no convolution or product that kernels can compute."""
    if node.target is CONVOLUTION:
        return _convolution(node)
    return _product(node) if node.target in PRODUCTS else None


def backward_sites(node: fx.Node) -> Iterator[Site]:
    """Yield the sites of both gradients of a convolution, as far as they are wanted and kernels can compute them."""
    if node.target is not CONVOLUTION_BACKWARD:
        return
    dy, x, w, _, *geometry = node.args
    wanted, values = node.args[-1], _geometry(geometry[:-1], x, w)
    if values is None or not _are_served(dy, x, w):
        return
    problem = _conv_problem(x, w, values)
    _, bwd_data, bwd_weight = GroupedConvProblem.variants
    if wanted[0]:
        yield Site(node, bwd_data, problem, (dy, w), (list(value_of(x).shape), *values))
    if wanted[1]:
        yield Site(node, bwd_weight, problem, (dy, x), (list(value_of(w).shape), *values))


def _convolution(node: fx.Node) -> Site | None:
    x, w, bias, *geometry = node.args
    values = _geometry(geometry, x, w)
    if values is None or not _are_served(x, w, *([] if bias is None else [bias])):
        return None
    return Site(node, GroupedConvProblem.variants[0], _conv_problem(x, w, values), (x, w), values, bias)


def _product(node: fx.Node) -> Site | None:
    *added, a, b = node.args
    if node.kwargs or not _are_served(a, b, *added) or not all(_is_matrix(value_of(operand)) for operand in (a, b)):
        return None
    site = Site(node, "universal", operators.mm_problem(value_of(a), value_of(b)), (a, b))
    if not added:
        return site
    rows, columns = value_of(a).shape[0], value_of(b).shape[1]
    if value_of(added[0]).shape == (columns,):
        return Site(node, site.variant, site.problem, site.operands, bias=added[0])
    if value_of(added[0]).shape == (rows, columns):
        return Site(node, site.variant, site.problem, site.operands, residual=added[0])
    return None


def _is_matrix(value: Tensor) -> bool:
    """Return whether kernels read a matrix in place: it is stored by rows or by columns without gaps."""
    return bool(value.is_contiguous() or value.t().is_contiguous())


def _geometry(arguments: Sequence[fx.node.Argument], x: fx.Node, w: fx.Node) -> Geometry | None:
    """Return (stride, padding, dilation, groups) with a value per axis; None where no kernel computes it."""
    *axes, transposed, _, groups = arguments
    ndim = value_of(x).dim() - 2
    if transposed or ndim not in (2, 3) or value_of(w).dim() != ndim + 2:
        return None
    if not all(type(value) is int for values in (*axes, [groups]) for value in values):
        return None
    stride, padding, dilation = (list(values) * (ndim // len(values)) for values in axes)
    return stride, padding, dilation, groups


def _conv_problem(x: fx.Node, w: fx.Node, values: Geometry) -> GroupedConvProblem:
    return operators.shaped_problem(value_of(x).shape, value_of(w).shape, *values)


def _are_served(*nodes: fx.Node) -> bool:
    """Return whether kernels exist for such tensors, and all sizes are known."""
    values = [node.meta.get("val") for node in nodes]
    if not all(isinstance(v, Tensor) for v in values):
        return False
    first = values[0]
    if first.dtype not in DTYPES or first.device.type != DEVICE_TYPE:
        return False
    return all(v.dtype == first.dtype and v.device == first.device and _is_known(v) for v in values)


def _is_known(value: Tensor) -> bool:
    """Return whether a tensor has elements, and sizes that are numbers and no symbols."""
    sizes = (*value.shape, *value.stride())
    return all(type(size) is int for size in sizes) and value.numel() > 0

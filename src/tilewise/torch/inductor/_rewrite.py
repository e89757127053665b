"""Replacement of nodes in an ATen graph by tilewise's operators."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, fx
from torch._inductor import inductor_prims

from tilewise.kernels import EMPTY_KIND, STORED_FORMATS
from tilewise.torch import _operators as operators
from tilewise.torch._ended import conv_ended, mm_ended
from tilewise.torch.inductor._endings import Ending
from tilewise.torch.inductor._sites import Site, value_of

aten = torch.ops.aten
_GRADIENTS: dict[str, tuple[int, Callable[..., Tensor]]] = {  # by variant: place in the result of ATen's node
    "bwd_data": (0, operators.conv_bwd_data),
    "bwd_weight": (1, operators.conv_bwd_weight),
}
_BIAS = 2


def replace_forward(site: Site, ending: Ending) -> None:
    """Let an operator of tilewise compute a site and its ending."""
    last, graph = ending.nodes[-1], site.node.graph
    with graph.inserting_before(last):
        new = _product(site, ending) if site.is_product else _convolution(site, ending)
        if value_of(new).shape != value_of(last).shape:
            new = _call(aten.reshape.default, new, list(value_of(last).shape))
    _take_over(last, new)
    for node in reversed(ending.nodes):
        graph.erase_node(node)


def replace_gradients(node: fx.Node, sites: list[Site]) -> None:
    """Let operators of tilewise compute these gradients of a convolution; ATen's node computes the others."""
    *args, wanted = node.args
    mask, graph = list(wanted), node.graph
    with graph.inserting_before(node):
        for site in sites:
            place, operator = _GRADIENTS[site.variant]
            new = _call(operator, *map(_channels_last, site.operands), *site.rest)
            _replace_item(node, place, new)
            mask[place] = False
        if mask == [False, False, True]:
            dy = args[0]
            _replace_item(node, _BIAS, _call(aten.sum.dim_IntList, dy, [0, *range(2, value_of(dy).dim())]))
            mask[_BIAS] = False
    if any(mask):
        node.args = (*args, mask)
        node.meta["val"] = [value if is_left else None for value, is_left in zip(node.meta["val"], mask, strict=True)]
    else:
        graph.erase_node(node)


def _convolution(site: Site, ending: Ending) -> fx.Node:
    operands = [_channels_last(node) for node in site.operands]
    if ending.kind == EMPTY_KIND:
        return _call(operators.conv, *operands, *site.rest)
    residual = None if ending.residual is None else _channels_last(ending.residual)
    return _call(conv_ended, *operands, ending.bias, residual, ending.activation, *site.rest)


def _product(site: Site, ending: Ending) -> fx.Node:
    if ending.kind == EMPTY_KIND:
        return _call(operators.mm, *site.operands)
    residual, shape = ending.residual, value_of(site.node).shape
    if residual is not None and value_of(residual).shape != shape:
        residual = _call(aten.reshape.default, residual, list(shape))
    return _call(mm_ended, *site.operands, ending.bias, residual, ending.activation)


def _channels_last(node: fx.Node) -> fx.Node:
    """Return a node with the value in channels-last memory; Inductor copies it only if it stored it otherwise."""
    value = value_of(node)
    layout = STORED_FORMATS[value.dim()]
    if value.is_contiguous(memory_format=layout):
        return node
    strides = list(torch.empty(value.shape, device="meta").to(memory_format=layout).stride())
    return _call(inductor_prims.force_stride_order, node, strides)


def _call(function: Callable[..., Tensor], *args: object) -> fx.Node:
    """Insert a call at the graph's point of insertion, with its fake result."""
    nodes = [arg for arg in args if isinstance(arg, fx.Node)]
    node = nodes[0].graph.call_function(function, args)
    values = [value_of(arg) if isinstance(arg, fx.Node) else arg for arg in args]
    with value_of(nodes[0]).fake_mode:
        node.meta["val"] = function(*values)
    return node


def _replace_item(node: fx.Node, place: int, new: fx.Node) -> None:
    for user in [user for user in node.users if user.args[1] == place]:
        _take_over(user, new)
        node.graph.erase_node(user)


def _take_over(old: fx.Node, new: fx.Node) -> None:
    """Let one node be read instead of another."""
    new.meta |= {key: old.meta[key] for key in ("stack_trace", "original_aten") if key in old.meta}
    old.replace_all_uses_with(new)

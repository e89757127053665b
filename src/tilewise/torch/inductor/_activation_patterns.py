"""Activations in a graph whose operators are decomposed: each is recognised by the decomposition that Inductor uses."""

from __future__ import annotations

from functools import cache
from typing import NamedTuple

import torch
from torch import fx
from torch._inductor.decomposition import select_decomp_table
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from tilewise.torch._ended import ACTIVATIONS


class Activation(NamedTuple):
    """An activation of a node.

    Attributes:
        name: one of :data:`tilewise.kernels.ACTIVATIONS`.
        nodes: the nodes that compute it, the result last.
    """

    name: str
    nodes: tuple[fx.Node, ...]


def activation_of(node: fx.Node) -> Activation | None:
    """Return the activation that alone reads a node, or None."""
    dtype = node.meta["val"].dtype
    for name in ACTIVATIONS:
        if nodes := _match(_pattern(name, dtype), node):
            return Activation(name, nodes)
    return None


@cache
def _pattern(name: str, dtype: torch.dtype) -> fx.Graph:
    """Return an activation's graph in the installed version of PyTorch, with the same decompositions."""
    with FakeTensorMode():
        example = torch.empty(2, 2, dtype=dtype)
        graph: fx.Graph = make_fx(lambda x: ACTIVATIONS[name](x), decomposition_table=select_decomp_table())(
            example
        ).graph
    return graph


def _match(pattern: fx.Graph, node: fx.Node) -> tuple[fx.Node, ...]:
    """Return the nodes that compute a pattern of `node`, which nothing else reads; () without a match."""
    found: dict[fx.Node, fx.Node] = {}
    last = None
    for wanted in pattern.nodes:
        if wanted.op == "placeholder":
            found[wanted] = node
        elif wanted.op == "output":
            last = found[wanted.args[0]]
        elif (same := _same(wanted, found)) is None:
            return ()
        else:
            found[wanted] = same
    nodes = tuple(dict.fromkeys(found.values()))
    inner = set(nodes) - {last}
    return nodes[1:] if all(user in nodes for n in inner for user in n.users) else ()


def _same(wanted: fx.Node, found: dict[fx.Node, fx.Node]) -> fx.Node | None:
    """Return the node of the graph that calls the same function of the same values."""
    args = fx.node.map_arg(wanted.args, found.__getitem__)
    kwargs = fx.node.map_arg(wanted.kwargs, found.__getitem__)
    for candidate in found[wanted.all_input_nodes[0]].users:
        if candidate.target is wanted.target and candidate.args == args and candidate.kwargs == kwargs:
            return candidate
    return None

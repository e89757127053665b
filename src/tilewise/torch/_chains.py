"""Nodes of a network's graph that a layer can compute itself: a normalisation, an addition and an activation after it.

The graph of ``torch.fx`` proves that nothing else reads the values in between, if it stands for the network.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from torch import fx, nn
from torch.nn import functional

from tilewise.errors import one_line
from tilewise.torch._graph import Traced, calls_of, is_hooked, name_of, trace
from tilewise.torch._layers import TRANSPOSED, kind_of
from tilewise.torch.norm import can_fuse, is_served

_NORMS: dict[type[nn.Module], type[nn.Module]] = {nn.Conv2d: nn.BatchNorm2d, nn.Conv3d: nn.BatchNorm3d}
_MODULES: dict[type[nn.Module], str] = {
    nn.ReLU: "relu",
    nn.SiLU: "silu",
    nn.GELU: "gelu",
    nn.Hardswish: "hardswish",
}
_FUNCTIONS: dict[object, str] = {
    functional.relu: "relu",
    torch.relu: "relu",
    torch.relu_: "relu",
    functional.relu_: "relu",
    functional.silu: "silu",
    functional.gelu: "gelu",
    functional.hardswish: "hardswish",
    "relu": "relu",  # methods
    "relu_": "relu",
}
_ADDITIONS = (operator.add, operator.iadd, torch.add, "add", "add_")


@dataclass(frozen=True)
class Chain:
    """A layer with the nodes that follow it.

    Attributes:
        layer: name of the layer.
        norm: name of a batch normalisation that can be folded into it; "" for none.
        has_residual: whether a tensor is added.
        activation: the activation that follows; "" for none.
        nodes: names of the graph's nodes, the layer's first.
    """

    layer: str
    norm: str
    has_residual: bool
    activation: str
    nodes: tuple[str, ...]

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts after the layer or its normalisation, as reports name them."""
        return (*(("residual",) if self.has_residual else ()), *((self.activation,) if self.activation else ()))

    @property
    def folding_only(self) -> Chain:
        """Return the chain without its addition and activation."""
        return replace(self, has_residual=False, activation="", nodes=self.nodes[: 1 + bool(self.norm)])

    @property
    def is_fused(self) -> bool:
        """Return whether there is an addition or an activation, which the layer's kernel can compute."""
        return self.has_residual or bool(self.activation)


class Found(NamedTuple):
    """The result of a search.

    Attributes:
        chains: the chains that have more than the layer, if the graph stands for the network.
        traced: the graph that has them; None without any.
        why_none: why nothing was searched for; "" if the network was searched.
    """

    chains: tuple[Chain, ...] = ()
    traced: Traced | None = None
    why_none: str = ""


def find_chains(model: nn.Module, inputs: Sequence[object], *, fold: bool, fuse: bool) -> Found:
    """Return the chains of the layers that the network calls once, for inference.

    Args:
        model: the network.
        inputs: an example of its arguments.
        fold: whether chains may have a batch normalisation.
        fuse: whether they may have an addition and an activation. A network that makes tensors itself, or that keeps
            results, has none.
    """
    if model.training:
        return Found(why_none="the model is in training mode; call model.eval() before, for inference")
    traced = _traced(model, inputs)
    if isinstance(traced, str):
        return Found(why_none=traced)
    search = _Search(model, traced.graph, fold)
    found = [chain for node in calls_of(traced.graph) if (chain := search.chain_of(node)) is not None]
    if not (fuse and traced.may_replace):
        found = [chain.folding_only for chain in found]
    chains = tuple(chain for chain in found if len(chain.nodes) > 1)
    return Found(chains, traced if chains else None)


def find_norm_chains(model: nn.Module, inputs: Sequence[object]) -> Found:
    """Return the chains that begin with a batch normalisation which the network calls once, for training.

    Args:
        model: the network, in training mode.
        inputs: an example of its arguments.
    """
    traced = _traced(model, inputs)
    if isinstance(traced, str):
        return Found(why_none=traced)
    if not traced.may_replace:
        return Found(why_none="the model makes tensors, or keeps or reads values, which a graph does not")
    search = _Search(model, traced.graph, fold=False)
    chains = tuple(chain for node in calls_of(traced.graph) if (chain := search.norm_chain_of(node)) is not None)
    return Found(chains, traced if chains else None)


def _traced(model: nn.Module, inputs: Sequence[object]) -> Traced | str:
    """Return the graph of a network, or the reason that stands against it."""
    if "forward" in vars(model):
        return "the model's forward is not that of its class"
    if len(inputs) != 1:
        return f"the example has {len(inputs)} arguments, and graphs are taken of networks with one"
    try:
        return trace(model)
    except Exception as e:
        return f"torch.fx cannot trace the model: {one_line(e)}"


class _Search:
    """The search for the chain of each layer.

    Args:
        model: the network.
        graph: its graph.
        fold: whether chains may contain a batch normalisation.
    """

    def __init__(self, model: nn.Module, graph: fx.Graph, fold: bool) -> None:
        self._layers, self._fold = dict(model.named_modules(remove_duplicate=False)), fold
        self._calls = Counter(id(self._layers[name_of(node)]) for node in calls_of(graph))
        self._taken: set[fx.Node] = set()

    def chain_of(self, node: fx.Node) -> Chain | None:
        """Return the chain that begins with a layer's call, or None where the node is no such call."""
        layer, nodes, norm = self._layers[name_of(node)], [node], ""
        if kind_of(layer) is None or isinstance(layer, TRANSPOSED) or not self._begins(node):
            return None
        if (after := self._only_user(node)) is not None and after.op == "call_module":
            follower = self._layers[name_of(after)]
            if isinstance(follower, nn.modules.batchnorm._BatchNorm):
                if not (self._fold and self._folds(layer, follower)):
                    return None
                nodes.append(after)
                norm = name_of(after)
        return self._with_ends(nodes, norm, lambda has_residual, activation: True)

    def norm_chain_of(self, node: fx.Node) -> Chain | None:
        """Return the chain that begins with a batch normalisation's call, or None where the node is no such call."""
        if not is_served(self._layers[name_of(node)]) or not self._begins(node):
            return None
        return self._with_ends([node], "", can_fuse)

    def _begins(self, node: fx.Node) -> bool:
        """Return whether a chain may begin with the call of a layer."""
        layer = self._layers[name_of(node)]
        called_once = self._calls[id(layer)] == 1 and len(node.args) == 1 and not node.kwargs
        return called_once and not _is_altered(layer)

    def _with_ends(self, nodes: list[fx.Node], norm: str, can: Callable[[bool, str], bool]) -> Chain:
        """Return the chain of these nodes and of an addition and an activation after them, as far as a layer can."""
        addition = self._only_user(nodes[-1])
        has_residual = addition is not None and self._adds(addition, nodes)
        if has_residual:
            nodes.append(addition)
        activation = self._only_user(nodes[-1])
        kind = "" if activation is None or not self._is_movable(nodes, activation) else self._activation(activation)
        kind = kind if can(has_residual, kind) else ""
        if kind:
            nodes.append(activation)
        self._taken.update(nodes)
        return Chain(name_of(nodes[0]), norm, has_residual, kind, tuple(n.name for n in nodes))

    def _only_user(self, node: fx.Node) -> fx.Node | None:
        users = list(node.users)
        return users[0] if len(users) == 1 and users[0] not in self._taken and users[0].op != "output" else None

    def _folds(self, layer: nn.Module, norm: nn.Module) -> bool:
        """Return whether both compute by their parameters alone, in evaluation mode."""
        kind = kind_of(layer)
        if kind is None or _NORMS.get(kind) is not type(norm) or self._calls[id(norm)] != 1 or _is_altered(norm):
            return False
        if layer.training or norm.training or norm.running_mean is None or norm.running_var is None:
            return False
        return torch.is_floating_point(layer.weight) and bool(layer.out_channels == norm.num_features)

    def _adds(self, node: fx.Node, nodes: list[fx.Node]) -> bool:
        """Return whether a node adds a tensor to the last of `nodes`, and the layer can be computed at its place."""
        if node.target not in _ADDITIONS or len(node.args) != 2 or node.kwargs:
            return False
        first, second = node.args
        other = second if first is nodes[-1] else first
        if first is second or not isinstance(other, fx.Node) or not _is_tensor(other):
            return False
        if _is_inplace(node, self._layers) and first is not nodes[-1]:  # changes the other, which others may read
            return False
        return self._is_movable(nodes, node)

    def _is_movable(self, nodes: list[fx.Node], to: fx.Node) -> bool:
        """Return whether nodes can be computed at the place of a later one: their operands must be the same there."""
        between = nodes[0].next
        while between is not to:
            if between not in nodes and _is_inplace(between, self._layers):
                return False
            between = between.next
        return True

    def _activation(self, node: fx.Node) -> str:
        """Return the activation that a node computes, "" for none."""
        if node.op == "call_module":
            layer = self._layers[name_of(node)]
            kind = "" if _is_altered(layer) else _MODULES.get(type(layer), "")
            tanh = getattr(layer, "approximate", "none") == "tanh"
        else:
            kind = _FUNCTIONS.get(node.target, "")
            tanh = node.kwargs.get("approximate", "none") == "tanh"
        if len(node.args) != 1 or set(node.kwargs) - {"inplace", "approximate"}:
            return ""
        return "gelu_tanh" if kind == "gelu" and tanh else kind


def _is_altered(module: nn.Module) -> bool:
    """Return whether something watches the calls of a module, or computes them in its place."""
    return is_hooked(module) or "forward" in vars(module)


def _is_tensor(node: fx.Node) -> bool:
    """Return whether a node surely gives a tensor; sizes and parts of tuples may be numbers."""
    if node.op in ("call_module", "placeholder"):
        return True
    return node.target in _ADDITIONS or node.target in _FUNCTIONS


def _is_inplace(node: fx.Node, layers: dict[str, nn.Module]) -> bool:
    """Return whether a node may change one of its arguments."""
    if node.op == "call_module":
        return bool(getattr(layers[name_of(node)], "inplace", False))
    name = node.target if isinstance(node.target, str) else getattr(node.target, "__name__", "")
    is_named = name.endswith("_") or name in ("iadd", "isub", "imul", "itruediv", "setitem")
    is_told = node.kwargs.get("inplace") or "out" in node.kwargs or any(a is True for a in node.args)  # relu(x, True)
    return node.op != "get_attr" and (is_named or bool(is_told))

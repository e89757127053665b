"""The forward pass of a network whose layers compute the nodes that follow them in their own store."""

from __future__ import annotations

import logging
from collections.abc import Callable
from itertools import pairwise
from typing import TypedDict

import torch
from torch import fx, nn
from torch.nn.modules.module import _has_any_global_hook as has_global_hooks

from tilewise.errors import one_line
from tilewise.torch._attributes import Attributes
from tilewise.torch._chains import Chain
from tilewise.torch._graph import (
    Conditions,
    Root,
    calls_of,
    code_of,
    computes_by_code,
    is_hooked,
    name_of,
    trace,
)

_log = logging.getLogger(__name__)


class _Names:
    """Modules as attributes. A module's own children are found by a function in Python, at several times the cost."""


class _State(TypedDict):
    _root: Root
    _chains: tuple[Chain, ...]
    _traced: str
    _is_training: bool
    _conditions: Conditions


class FusedForward:
    """The forward pass of one network: its graph with the chains replaced by calls of their layers.

    It applies to one argument of the example's type, in the mode (training or evaluation) in which it was made, while
    modules and their attributes are those of the trace, none that the graph leaves out or lets compute more has hooks,
    and no gradient of a folded layer's parameters can be asked for. Code that asks whether gradients are recorded, or
    sets it, is computed where that is as in the trace. Elsewhere the network's own ``forward`` computes, as it does
    while ``torch.fx`` traces a network of which this one is a part. It is not a module,
    so the network keeps its names; copies and pickles trace their graph again in their first call, and compute it if it
    is the same. Replicas of ``nn.DataParallel``, which live for one call, compute by the network's own ``forward``.
    """

    _compute: Callable[..., object] | None = None  # of the graph; without one the network computes

    def __init__(self, network: nn.Module, chains: tuple[Chain, ...], graph: fx.Graph) -> None:
        self._root, self._chains, self._is_training = Root(network), chains, bool(network.training)
        self._traced, self._is_traced, self._conditions = str(graph), True, Conditions.of(graph)
        self._build(graph)

    def install(self) -> None:
        """Make it the network's."""
        network = self._root.network
        network.forward, network._replicate_for_data_parallel = self.forward, self.replicate

    def replicate(self) -> nn.Module:
        """Return a replica of the network; as a shallow copy it would have the ``forward`` of this one's layers."""
        network = self._root.network
        replica: nn.Module = type(network)._replicate_for_data_parallel(network)
        del replica._replicate_for_data_parallel
        if vars(replica).get("forward") == self.forward:
            del replica.forward
        return replica

    def forward(self, *args: object, **kwargs: object) -> object:
        """Compute the network."""
        network = self._root.network
        if computes_by_code(*args, *kwargs.values()):
            return type(network).forward(network, *args, **kwargs)
        if not self._is_traced and not torch.compiler.is_compiling():
            self._trace_again()
        if len(args) == 1 and not kwargs and self._compute is not None and self._applies(args[0]):
            return self._compute(self._names, *args)
        return type(network).forward(network, *args, **kwargs)

    def __getstate__(self) -> _State:
        return {
            "_root": self._root,
            "_chains": self._chains,
            "_traced": self._traced,
            "_is_training": self._is_training,
            "_conditions": self._conditions,
        }

    def __setstate__(self, state: _State) -> None:
        self._root, self._chains, self._traced = state["_root"], state["_chains"], state["_traced"]
        self._is_training, self._conditions = state["_is_training"], state["_conditions"]
        self._is_traced = False

    def _trace_again(self) -> None:
        """Build the graph of a copy, unless attributes were changed before it was made, so that it computes another."""
        self._is_traced = True
        try:
            graph = trace(self._root.network).graph
        except Exception as e:
            _log.info("the network computes by itself, as torch.fx cannot trace it any more: %s", one_line(e))
            return
        if str(graph) == self._traced:
            self._build(graph)

    def _applies(self, argument: object) -> bool:
        if self._root.network.training is not self._is_training:
            return False
        type_of_argument, needs_mode = self._conditions
        if not isinstance(argument, type_of_argument):
            return False
        if needs_mode and torch.is_grad_enabled() is not self._is_training:
            return False
        for siblings, count in self._siblings:
            if len(siblings) != count:
                return False
        for siblings, name, module, has_other_mode in self._places:
            if siblings.get(name) is not module:
                return False
            if module is not None and (module.training is not self._is_training) is not has_other_mode:
                return False
        for module in self._watched:
            if is_hooked(module):
                return False
        if has_global_hooks() or not self._attributes.are_unchanged():
            return False
        return not torch.is_grad_enabled() or all(pair.is_active for pair in self._pairs)

    def _build(self, graph: fx.Graph) -> None:
        """Put the layers in the place of their chains."""
        network = self._root.network
        layers = dict(network.named_modules(remove_duplicate=False))
        nodes = {node.name: node for node in graph.nodes}
        gone = {
            id(layers[name_of(nodes[n])]) for c in self._chains for n in c.nodes[1:] if nodes[n].op == "call_module"
        }
        for chain in self._chains:
            _rewrite(graph, chain, [nodes[name] for name in chain.nodes])
        plain = (
            {id(layers[name_of(node)]) for node in calls_of(graph)} - gone - {id(layers[c.layer]) for c in self._chains}
        )
        modules = tuple(network.modules())
        mode = network.training
        self._places = tuple(
            (m._modules, name, child, child is not None and child.training is not mode)
            for m in modules
            for name, child in m._modules.items()
        )
        self._siblings = tuple((m._modules, len(m._modules)) for m in modules if m._modules)
        self._watched = tuple(m for m in modules if m is not network and id(m) not in plain)
        self._attributes = Attributes(code_of(network))
        self._pairs = tuple(m.folded_pair for m in modules if hasattr(m, "folded_pair") and hasattr(m, "folded_weight"))
        self._names = _named(self._root, graph)
        self._compute = type(fx.GraphModule(self._root, graph)).forward


def _named(root: Root, graph: fx.Graph) -> _Names:
    """Return the modules that a graph calls, and those whose tensors it reads, under the names that it has for them."""
    calls = {str(node.target) for node in graph.nodes if node.op == "call_module"}
    owners = {str(node.target).rpartition(".")[0] for node in graph.nodes if node.op == "get_attr"}
    names = _Names()
    for path in sorted(calls | owners, key=lambda path: path.count(".")):
        place: object = names
        *parents, last = path.split(".")
        for parent in parents:
            if not hasattr(place, parent):
                setattr(place, parent, _Names())
            place = getattr(place, parent)
        if isinstance(place, _Names):  # else it is found in a module that was named before
            setattr(place, last, root.get_submodule(path))
    return names


def _rewrite(graph: fx.Graph, chain: Chain, nodes: list[fx.Node]) -> None:
    """Replace the nodes of a chain by one call of its layer, at the place of the last."""
    ends: dict[str, fx.Node | str] = {}
    for before, node in pairwise(nodes):
        if len(node.args) == 2:
            ends["residual"] = node.args[1] if node.args[0] is before else node.args[0]
    if chain.activation:
        ends["activation"] = chain.activation
    with graph.inserting_before(nodes[-1]):
        call = graph.call_module(nodes[0].target, nodes[0].args, ends)
    nodes[-1].replace_all_uses_with(call)
    for node in reversed(nodes):
        graph.erase_node(node)

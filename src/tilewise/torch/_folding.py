"""Pairs of a convolution and a batch normalisation that may be folded for inference, proved by the network's graph."""

from __future__ import annotations

from collections import Counter
from typing import NamedTuple

import torch
from torch import fx, nn

from tilewise.errors import one_line

_NORMS: dict[type[nn.Module], type[nn.Module]] = {nn.Conv2d: nn.BatchNorm2d, nn.Conv3d: nn.BatchNorm3d}


class FoundPairs(NamedTuple):
    """The result of a search.

    Attributes:
        pairs: (name of the convolution, name of the batch normalisation).
        why_none: why nothing is folded; "" if the network was searched.
    """

    pairs: tuple[tuple[str, str], ...]
    why_none: str = ""


def find_pairs(model: nn.Module) -> FoundPairs:
    """Return the pairs that may be folded: evaluated layers without hooks, the one used by the other alone."""
    if model.training:
        return FoundPairs((), "the model is in training mode; call model.eval() before, for inference")
    try:
        graph = fx.Tracer().trace(model)
    except Exception as e:
        return FoundPairs((), f"torch.fx cannot trace the model: {one_line(e)}")
    layers = dict(model.named_modules(remove_duplicate=False))
    calls = Counter(id(layers[node.target]) for node in graph.nodes if node.op == "call_module")
    pairs = []
    for node in graph.nodes:
        before = node.args[0] if node.op == "call_module" and len(node.args) == 1 else None
        if not isinstance(before, fx.Node) or before.op != "call_module" or len(before.users) != 1:
            continue
        conv, norm = layers[before.target], layers[node.target]
        if _NORMS.get(type(conv)) is type(norm) and calls[id(conv)] == calls[id(norm)] == 1 and _fits(conv, norm):
            pairs.append((before.target, node.target))
    return FoundPairs(tuple(pairs))


def _fits(conv: nn.Module, norm: nn.Module) -> bool:
    """Return whether both compute by their parameters alone, as they do in evaluation mode without hooks."""
    if conv.training or norm.training or norm.running_mean is None or norm.running_var is None:
        return False
    hooked = any(m._forward_hooks or m._forward_pre_hooks or m._backward_hooks for m in (conv, norm))
    return not hooked and torch.is_floating_point(conv.weight) and conv.out_channels == norm.num_features

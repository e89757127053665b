"""Networks with those layers replaced that selected kernels compute faster than PyTorch's own calls.

The decision is a pure function of the layers' shapes, the dispatchers' models and switches, and the host costs of eager
calls; the weights play no part. So all processes of a distributed job choose alike that are given the same costs.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from torch import nn

from tilewise.ops import Problem
from tilewise.torch._chains import Chain, Found, find_chains, find_norm_chains
from tilewise.torch._fused_forward import FusedForward
from tilewise.torch._graph import observe
from tilewise.torch._layers import REPLACEMENTS, fold_layers, kind_of, replace_layer
from tilewise.torch._serving import dispatcher_named, target_name
from tilewise.torch._training_step import Rest, observe_step
from tilewise.torch.decision import Judge, Launch, Layer, LayerReport, OptimizeReport, host_ms_of_pass
from tilewise.torch.norm import is_served, replace_norm


class Optimized(NamedTuple):
    """An optimised network, and the report on it."""

    model: nn.Module
    report: OptimizeReport


def optimize(
    model: nn.Module, *example_inputs: Any, inplace: bool = False, fold: bool = True, fuse: bool = True,
    min_gain: float | None = None, launch: Launch = "eager",
) -> Optimized:  # fmt: skip
    """Replace the layers of a network that kernels compute faster than PyTorch, by predictions or by :func:`measure`.

    Convolutions and linear layers are compared on the shapes that they see while the network runs on the example; in
    training mode with their gradients, in evaluation mode with the batch normalisation, addition and activation that
    follow and that their kernels can compute too. A layer stays as it is where nothing is gained, or where the two
    cannot be compared. In training kernels compute batch normalisations too: for CUDA graphs, with the addition and
    activation that follow, and for eager steps that keep the GPU busy. Parameters keep their names, so a ``state_dict``
    of the original can be loaded.

    Args:
        model: the network, on the device and in the dtype in which it will run. It runs on fake tensors, and for eager
            calls in evaluation mode a few times for real.
        example_inputs: its arguments, of the shapes to decide on.
        inplace: change the network itself instead of a copy.
        fold: fold batch normalisations into convolutions, in evaluation mode and where the graph proves that nothing
            else reads the convolution's result. After other changes of parameters than by ``load_state_dict`` or in
            training mode, both layers compute until evaluation mode begins again.
        fuse: let replaced layers compute additions and activations after them, in evaluation mode and where the graph
            proves the same; in training mode, let kernels compute batch normalisations, with these for CUDA graphs.
        min_gain: least gain for which a layer is replaced, as a share of its time with PyTorch. None: 0.05 where it is
            predicted in training mode, where nothing is fused and predictions may be off by as much, and else 0.
        launch: how the network will be called. ``eager``: from Python, where a pass lasts as long as the host's part
            of it or the GPU's, whichever is longer; the host's is measured. Costs that another process measured
            (`report.host`) may be given instead, so that all of a job decide alike. ``graph``: captured in CUDA
            graphs, where kernels alone count.

    Raises:
        ConfigError: `min_gain` is negative, or `launch` is unknown.
    """
    model, models = model if inplace else copy.deepcopy(model), dict[str, str]()
    host = None if model.training else partial(host_ms_of_pass, model, example_inputs)
    judge = Judge(min_gain, launch, models, host)
    found = _found(model, example_inputs, fold=fold, fuse=fuse, launch=launch)
    if model.training and launch != "graph":
        calls, rest = observe_step(model, example_inputs)
    else:
        (calls, why_unproved), rest = observe(model, example_inputs, found.traced), Rest()
        found = Found(why_none=why_unproved) if why_unproved else found
    modules, chains = dict(model.named_modules()), {chain.layer: chain for chain in found.chains}
    candidates = [Layer(name, modules[name], chains.get(name)) for name in calls]
    layers, unfused = judge.decide(candidates, calls, rest if fuse else rest.with_plain_norms)
    norms = dict.fromkeys(unfused, ()) | {c.layer: c.parts for c in found.chains if is_served(modules[c.layer])}
    folded = _apply(model, layers, norms, found)
    order = list(modules)
    every = sorted((*layers, *_other_layers(modules)), key=lambda layer: order.index(layer.name))
    return Optimized(model, OptimizeReport(tuple(every), folded, found.why_none, models, judge.host, norms))


def measure(model: nn.Module, *example_inputs: Any, top_k: int = 3) -> None:
    """Measure the layers of a network on this machine's GPU, so that times decide instead of predictions.

    For each computation the best kernels by the model and PyTorch's own call are timed, unless they were before, those
    of a target in one process. :func:`optimize`, and the functions and layers of this module, then follow the times,
    in every process that shares ``TILEWISE_CACHE``.

    Args:
        model: the network, as for :func:`optimize`; in training mode its gradients are measured too.
        example_inputs: its arguments, of the shapes to measure.
        top_k: number of kernels beside PyTorch's own call.

    Raises:
        ConfigError: `top_k` is no whole number of 1 or more, or a switch lets the model alone decide.
        MeasurementError: nothing could be measured, for example because there is no such GPU.
    """
    calls = observe(model, example_inputs, None).calls
    problems: dict[str, dict[Problem, None]] = {}
    for passes in (passes for of_layer in calls.values() for passes in of_layer if not isinstance(passes, str)):
        for made in passes:
            name = target_name(made.problem.op, made.variant, made.dtype, made.device)
            problems.setdefault(name, {})[made.problem] = None
    for name, of_target in problems.items():
        if (dispatcher := dispatcher_named(name)) is not None:
            dispatcher.measure(of_target, top_k)


def _found(model: nn.Module, inputs: Sequence[object], *, fold: bool, fuse: bool, launch: Launch) -> Found:
    """Return the chains of a network in its mode.

    Eager steps of training keep the network's own code: a graph has neither its side effects nor its random branches,
    which a CUDA graph would not repeat either.
    """
    if model.training and fuse and launch == "graph":
        return find_norm_chains(model, inputs)
    return find_chains(model, inputs, fold=fold, fuse=fuse)


def _apply(
    model: nn.Module, layers: Sequence[LayerReport], norms: Iterable[str], found: Found
) -> tuple[tuple[str, str], ...]:
    """Replace layers and normalisations, fold and fuse as it was decided, and return the pairs that are folded."""
    modules, chains = dict(model.named_modules()), found.chains
    replaced = {layer.name for layer in layers if layer.replaced}
    for layer in layers:
        if layer.replaced:
            replace_layer(modules[layer.name], layer.in_one_launch)
    pairs = [(c.layer, c.norm) for c in chains if c.norm and _is_worth_folding(modules[c.layer], c, replaced)]
    for conv, norm in pairs:
        fold_layers(modules[conv], modules[norm], model)
    for name in norms:
        replace_norm(modules[name])
    replaced.update(norms)
    fused = tuple(chain for chain in chains if chain.is_fused and chain.layer in replaced)
    if fused and found.traced is not None:
        FusedForward(model, fused, found.traced.graph).install()
    return tuple(pairs)


def _is_worth_folding(conv: nn.Module, chain: Chain, replaced: Collection[str]) -> bool:
    """Return whether folding spares a pass.

    PyTorch adds a bias in a pass of its own, which takes as long as the normalisation or up to 1.7 times as long (H200,
    bf16, 128 x 256 x 56 x 56: 278 us beside 162); a kernel of ours adds it in its store.
    """
    return conv.bias is not None or chain.layer in replaced


def _other_layers(modules: dict[str, nn.Module]) -> list[LayerReport]:
    """Return the layers of classes that derive from those of PyTorch and redefine what these compute by."""
    kinds, done = tuple(REPLACEMENTS), tuple(REPLACEMENTS.values())
    return [
        LayerReport(name, (), False, f"{type(layer).__name__} redefines PyTorch's layer")
        for name, layer in modules.items()
        if isinstance(layer, kinds)
        and not isinstance(layer, done)
        and kind_of(layer) is None
        and not hasattr(layer, "folded_pair")
    ]

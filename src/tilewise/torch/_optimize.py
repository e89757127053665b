"""Networks with those layers replaced that selected kernels compute faster than PyTorch's own calls.

The decision is a pure function of the layers' shapes, the dispatchers' models and switches, and the host costs of eager
calls; the weights play no part. So all processes of a distributed job choose alike that are given the same costs.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal, NamedTuple

from torch import nn

from tilewise.errors import ConfigError, KernelError
from tilewise.kernels import EMPTY_KIND, EpilogueKind, pass_ms
from tilewise.ops import Problem
from tilewise.torch._calls import Calls, Pass
from tilewise.torch._chains import Chain, Found, find_chains, find_norm_chains
from tilewise.torch._fused_forward import FusedForward
from tilewise.torch._graph import Traced, observe
from tilewise.torch._host_costs import (
    HOST_MARGINS,
    REST_OF_PASS,
    HostCost,
    LaunchForm,
    cost_name,
    host_cost,
    host_ms_of_pass,
    launch_form,
)
from tilewise.torch._launch_budget import Work, shortest_pass
from tilewise.torch._layer_report import LayerReport, OptimizeReport, PassReport
from tilewise.torch._layers import REPLACEMENTS, fold_layers, kind_of, replace_layer
from tilewise.torch._serving import dispatcher_named, target_name
from tilewise.torch.norm import replace_norm

Launch = Literal["eager", "graph"] | Mapping[str, HostCost]

# Out of fold, four in ten of the convolutions that are predicted to gain less lose (docs/learnings.md, "Small gains").
_LEAST_GAIN_OF_TRAINING = 0.05


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
    cannot be compared. For CUDA graphs of training steps, batch normalisations compute the addition and activation that
    follow them. Parameters keep their names, so a ``state_dict`` of the original can be loaded.

    Args:
        model: the network, on the device and in the dtype in which it will run. It runs on fake tensors, and for eager
            calls in evaluation mode a few times for real.
        example_inputs: its arguments, of the shapes to decide on.
        inplace: change the network itself instead of a copy.
        fold: fold batch normalisations into convolutions, in evaluation mode and where the graph proves that nothing
            else reads the convolution's result. Parameters must afterwards be changed by ``load_state_dict`` or in
            training mode only.
        fuse: let replaced layers compute additions and activations after them, in evaluation mode and where the graph
            proves the same; in training mode, for CUDA graphs, let batch normalisations do so.
        min_gain: least gain for which a layer is replaced, as a share of its time with PyTorch. None: 0.05 where it is
            predicted in training mode, where nothing is fused and predictions may be off by as much, and else 0.
        launch: how the network will be called. ``eager``: from Python, where a pass lasts as long as the host's part
            of it or the GPU's, whichever is longer; the host's is measured. Costs that another process measured
            (`report.host`) may be given instead, so that all of a job decide alike. ``graph``: captured in CUDA
            graphs, where kernels alone count.

    Raises:
        ConfigError: `min_gain` is negative, or `launch` is unknown.
    """
    if min_gain is not None and min_gain < 0:
        raise ConfigError(f"min_gain must be a share of at least 0, got {min_gain}")
    if isinstance(launch, str) and launch not in ("eager", "graph"):
        raise ConfigError(f"launch must be 'eager', 'graph' or measured host costs, got {launch!r}")
    model = model if inplace else copy.deepcopy(model)
    found, models = _found(model, example_inputs, fold=fold, fuse=fuse, launch=launch), dict[str, str]()
    calls, why_unproved = observe(model, example_inputs, found.traced)
    if why_unproved:
        found = Found(why_none=why_unproved)
    modules, chains = dict(model.named_modules()), {chain.layer: chain for chain in found.chains}
    host = None if model.training else partial(host_ms_of_pass, model, example_inputs)
    judge = _Judge(min_gain, launch, models, host)
    layers = judge.decide([_Layer(name, modules[name], chains.get(name)) for name in calls], calls)
    folded = _apply(model, layers, chains, found.traced)
    norms = tuple(chains) if model.training else ()
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
    calls, _ = observe(model, example_inputs, None)
    problems: dict[str, dict[Problem, None]] = {}
    for passes in (passes for of_layer in calls.values() for passes in of_layer if not isinstance(passes, str)):
        for made in passes:
            name = target_name(made.problem.op, made.variant, made.dtype, made.device)
            problems.setdefault(name, {})[made.problem] = None
    for name, of_target in problems.items():
        if (dispatcher := dispatcher_named(name)) is not None:
            dispatcher.measure(of_target, top_k)


def _found(model: nn.Module, inputs: Sequence[object], *, fold: bool, fuse: bool, launch: Launch) -> Found:
    """Return the chains of a network in its mode. A kernel's call takes the host longer than PyTorch's in training."""
    if model.training and fuse and launch == "graph":
        return find_norm_chains(model, inputs)
    return find_chains(model, inputs, fold=fold, fuse=fuse)


@dataclass(frozen=True)
class _Layer:
    """A layer with the chain that it begins, if there is one."""

    name: str
    module: nn.Module
    chain: Chain | None

    @property
    def kind(self) -> EpilogueKind:
        """The epilogue of its kernel where it is replaced."""
        chain, has_bias = self.chain, self.module.bias is not None
        if chain is None:
            return EpilogueKind(has_bias)
        return EpilogueKind(has_bias or bool(chain.norm), chain.has_residual, chain.activation)

    @property
    def functions_after(self) -> int:
        """The number of functions that PyTorch calls after the layer, and its kernel spares."""
        return self.kind.has_residual + bool(self.kind.activation)

    @property
    def calls_norm(self) -> bool:
        """A batch normalisation that PyTorch calls after it; one after a layer with a bias is folded anyway."""
        return self.chain is not None and bool(self.chain.norm) and self.module.bias is None

    @property
    def passes(self) -> list[EpilogueKind]:
        """The passes over the result by which PyTorch computes the same, one after the other.

        It adds the bias of a convolution in a pass of its own, and that of a product within its call. A normalisation
        is such a pass, or folded into a bias.
        """
        kind, is_product = self.kind, isinstance(self.module, nn.Linear)
        parts = (kind.has_bias and not is_product, kind.has_residual, bool(kind.activation))
        singly = (EpilogueKind(True), EpilogueKind(False, True), EpilogueKind(activation=kind.activation))
        return [single for single, is_there in zip(singly, parts, strict=True) if is_there]


def _apply(
    model: nn.Module, layers: Sequence[LayerReport], chains: Mapping[str, Chain], traced: Traced | None
) -> tuple[tuple[str, str], ...]:
    """Replace layers, fold and fuse as it was decided, and return the pairs that are folded."""
    modules = dict(model.named_modules())
    replaced = {layer.name for layer in layers if layer.replaced}
    for layer in layers:
        if layer.replaced:
            replace_layer(modules[layer.name], layer.in_one_launch)
    pairs = [(c.layer, c.norm) for c in chains.values() if c.norm and _is_worth_folding(modules[c.layer], c, replaced)]
    for conv, norm in pairs:
        fold_layers(modules[conv], modules[norm])
    if model.training:
        for name in chains:
            replace_norm(modules[name])
        replaced.update(chains)
    fused = tuple(chain for chain in chains.values() if chain.is_fused and chain.layer in replaced)
    if fused and traced is not None:
        FusedForward(model, fused, traced.graph).install()
    return tuple(pairs)


def _is_worth_folding(conv: nn.Module, chain: Chain, replaced: Collection[str]) -> bool:
    """Return whether folding spares a pass.

    PyTorch adds a bias in a pass of its own, which takes as long as the normalisation or up to 1.7 times as long (H200,
    bf16, 128 x 256 x 56 x 56: 278 us beside 162); a kernel of ours adds it in its store.
    """
    return conv.bias is not None or chain.layer in replaced


class _Judge:
    """Decides which layers are replaced.

    Args:
        min_gain: see :func:`optimize`.
        launch: likewise.
        models: takes the dispatchers' identities by target.
        pass_of_host: measures the host's milliseconds of a pass by PyTorch; None where they are not known.

    Attributes:
        host: host costs that decisions were based on, by name.
    """

    def __init__(
        self, min_gain: float | None, launch: Launch, models: dict[str, str], pass_of_host: Callable[[], float] | None
    ) -> None:
        self._min_gain, self._launch, self._models = min_gain, launch, models
        self._pass_of_host = pass_of_host
        self._works: dict[str, list[Work]] = {}
        self.host: dict[str, HostCost] = {}

    def decide(self, layers: Sequence[_Layer], calls: Calls) -> tuple[LayerReport, ...]:
        """Return the decisions on layers, given their calls by name."""
        ways = {layer.name: self._ways(layer, calls[layer.name]) for layer in layers}
        if self._launch == "graph":
            return tuple(reports[-1] for reports in ways.values())
        chosen = shortest_pass(self._works, self._rest_of_host())
        return tuple(self._decision(reports, chosen.get(name, 0)) for name, reports in ways.items())

    def _ways(self, layer: _Layer, calls: Sequence[Sequence[Pass] | str]) -> list[LayerReport]:
        """Return the ways to compute a layer: left to PyTorch, and by kernels as far as the GPU's part becomes shorter.

        Keep the work of each way of an eager network.
        """
        name = layer.name
        if not calls:
            return [LayerReport(name, (), False, "the example does not call it")]
        counts: Counter[Pass] = Counter()
        for passes_of_call in calls:
            if isinstance(passes_of_call, str):
                return [LayerReport(name, (), False, passes_of_call)]
            counts.update(passes_of_call)
        picked = self._by_kernels(layer, counts, in_one_launch=False)
        left = replace(picked, replaced=False, fused=())
        if picked.pytorch_ms is None:
            return [left]
        ways = [picked]
        if self._launch != "graph" and not layer.module.training:
            lightest = self._by_kernels(layer, counts, in_one_launch=True)
            if [p.pick for p in lightest.passes] != [p.pick for p in picked.passes]:
                ways.append(lightest)
        if self._launch != "graph":
            self._works[name] = self._work(layer, list(counts), len(calls), [left, *ways])
        return [left, *(way for way in ways if way.replaced)]

    def _by_kernels(self, layer: _Layer, counts: Mapping[Pass, int], *, in_one_launch: bool) -> LayerReport:
        """Return the decision that the GPU's part of a layer's calls would lead to."""
        name = layer.name
        passes = tuple(_report(made, n, layer, self._models, in_one_launch) for made, n in counts.items())
        unknown = next((p.why_unknown for p in passes if p.why_unknown), "")
        found = LayerReport(name, passes, True, "", _parts(layer.chain), in_one_launch)
        if unknown or found.pytorch_ms is None or found.expected_ms is None:
            return LayerReport(name, passes, False, unknown)
        if all(p.expected_ms == p.pytorch_ms for p in passes):
            return LayerReport(name, passes, False, "PyTorch's own call is the pick")
        gain = 1 - found.expected_ms / found.pytorch_ms
        is_measured = all(p.is_measured for p in passes)
        why, least = f"the {'measured' if is_measured else 'predicted'} gain is {gain:.1%}", self._min_gain
        if least is None:
            least = _LEAST_GAIN_OF_TRAINING if layer.module.training and not is_measured else 0.0
        if gain <= least:
            return LayerReport(name, passes, False, f"{why}, more than {least:.1%} is asked for")
        return replace(found, reason=why)

    def _work(self, layer: _Layer, passes: Sequence[Pass], calls: int, ways: Sequence[LayerReport]) -> list[Work]:
        """Return the work of the ways that are possible, PyTorch's first."""
        works: list[Work] = []
        for way in ways:
            if (way.replaced or not works) and (form := way.passes[0].form) is not None:
                host = self._host_cost(layer.module, passes, form)
                pytorch_ms = host.pytorch_ms + layer.functions_after * host.pass_ms + layer.calls_norm * host.norm_ms
                if not works:
                    works.append(Work(way.pytorch_ms or 0.0, calls * pytorch_ms))
                if way.replaced:  # both parts of the difference were measured in turn
                    more = host.kernel_ms * HOST_MARGINS[form] - pytorch_ms
                    works.append(Work(way.expected_ms or 0.0, works[0].host + calls * more))
        return works

    def _host_cost(self, layer: nn.Module, passes: Sequence[Pass], form: LaunchForm) -> HostCost:
        """Return the host's part of one call of a layer."""
        first = passes[0]
        name = cost_name(layer, first.dtype, form)
        if isinstance(self._launch, str):
            targets = [target_name(p.problem.op, p.variant, p.dtype, p.device) for p in passes]
            cost = host_cost(layer, form, targets, first.dtype, first.device)
        elif name in self._launch:
            cost = self._launch[name]
        else:
            raise ConfigError(f"launch has no host cost of {name}; pass report.host of a process that measured it")
        self.host[name] = cost
        return cost

    def _rest_of_host(self) -> float:
        """Return the host's milliseconds of a pass for everything but the layers whose work is known."""
        if isinstance(self._launch, str):
            if self._pass_of_host is None or not self._works:
                return 0.0
            rest = max(self._pass_of_host() - sum(works[0].host for works in self._works.values()), 0.0)
            cost = HostCost(rest, rest, 0.0, 0.0)
        elif REST_OF_PASS in self._launch:
            cost = self._launch[REST_OF_PASS]
        else:  # of a network in training
            return 0.0
        self.host[REST_OF_PASS] = cost
        return cost.pytorch_ms

    def _decision(self, ways: Sequence[LayerReport], chosen: int) -> LayerReport:
        """Return the decision for one of the ways, with the reason where the host's part of faster kernels decided."""
        if chosen or len(ways) == 1:
            return ways[chosen]
        works = self._works[ways[0].name]
        why = f"the host would take {works[1].host:.4f} ms instead of {works[0].host:.4f}"
        return replace(ways[0], reason=f"{ways[1].reason}, but {why}")


def _parts(chain: Chain | None) -> tuple[str, ...]:
    """Return the parts of a chain that the layer's kernel computes, as a report names them."""
    if chain is None:
        return ()
    return (*(("residual",) if chain.has_residual else ()), *((chain.activation,) if chain.activation else ()))


def _report(made: Pass, calls: int, layer: _Layer, models: dict[str, str], in_one_launch: bool) -> PassReport:
    """Return the times of one computation, measured where they are known and else predicted."""
    name = target_name(made.problem.op, made.variant, made.dtype, made.device)
    dispatcher, dimensions = dispatcher_named(name), made.problem.to_dict()
    if dispatcher is None:
        return PassReport(name, dimensions, calls, "", None, None, f"there is no model of {name}")
    models[name] = dispatcher.identity
    kind = layer.kind._replace(in_one_launch=in_one_launch) if made.is_result else EMPTY_KIND
    try:
        found = dispatcher.compare_with_pytorch(made.problem, kind)
    except KernelError as e:
        return PassReport(name, dimensions, calls, "", None, None, f"no kernel can be selected: {e}")
    pick = found.pick.kernel_name
    if found.pick_ms is None or found.pytorch_ms is None:
        absent = "no model" if found.pick_ms is None else "no call of PyTorch's own for this problem"
        why = f"{name} has {absent}, so nothing compares them"
        return PassReport(name, dimensions, calls, pick, None, None, why)
    arch, passes = dispatcher.arch, layer.passes if made.is_result else []
    pytorch_ms = found.pytorch_ms + sum(pass_ms(single, made.problem, made.variant, arch) for single in passes)
    form = launch_form(found.pick.kernel, made.problem, dispatcher.target, kind.computed)
    times = (pytorch_ms, found.pick_ms)
    return PassReport(name, dimensions, calls, pick, *times, form=form, is_measured=found.is_measured)


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

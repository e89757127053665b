"""Decides which layers of a network are replaced, by their times on the GPU and, in eager networks, on the host.

A decision is a pure function of the layers' shapes, the dispatchers' models and switches, and the host costs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import torch
from torch import nn

from tilewise.arch import HardwareProfile
from tilewise.errors import ConfigError, KernelError
from tilewise.kernels import EMPTY_KIND, EpilogueKind, pass_ms, stream_ms
from tilewise.torch._calls import Calls, Pass
from tilewise.torch._chains import Chain
from tilewise.torch._layers import TRANSPOSED
from tilewise.torch._serving import dispatcher_named, target_name
from tilewise.torch._training_step import Rest
from tilewise.torch.decision._host_costs import (
    HOST_MARGINS,
    REST_OF_PASS,
    HostCost,
    LaunchForm,
    cost_name,
    host_cost,
    launch_form,
    norm_cost,
    norm_cost_name,
)
from tilewise.torch.decision._launch_budget import Work, shortest_pass
from tilewise.torch.decision._layer_report import LayerReport, PassReport

Launch = Literal["eager", "graph"] | Mapping[str, HostCost]

# Out of fold, four in ten of the convolutions that are predicted to gain less lose (docs/learnings.md, "Small gains").
_LEAST_GAIN_OF_TRAINING = 0.05

# Calls are timed one kind at a time. Steps of wide_resnet50_2 and resnext50_32x4d with parts replaced took the host
# 1.14 and 1.16 times the sum of their calls (H200's host).
_HOST_MARGIN_OF_TRAINING = 1.2

# How often a step reads or writes the whole tensor, at the bandwidth of DRAM, forward and backward: the least of the
# normalisations of at least 10 MB in benchmarks/results/norms.json, and of other functions twice each way.
_NORM_PASSES, _NORM_PASSES_OF_KERNELS, _FUNCTION_PASSES = 18, 14, 4


@dataclass(frozen=True)
class Layer:
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


class _Operands(NamedTuple):
    """The operands of layers whose work is known, and the hardware."""

    dtype: torch.dtype
    device: torch.device
    arch: HardwareProfile


class Decision(NamedTuple):
    """The decisions on the layers of a network, and the batch normalisations of an eager step that kernels compute."""

    layers: tuple[LayerReport, ...]
    norms: tuple[str, ...]


class Judge:
    """Decides which layers are replaced.

    Args:
        min_gain: see :func:`tilewise.torch.optimize`.
        launch: likewise.
        models: takes the dispatchers' identities by target.
        pass_of_host: measures the host's milliseconds of a pass by PyTorch; None for networks in training.

    Raises:
        ConfigError: `min_gain` is negative, or `launch` is unknown.

    Attributes:
        host: host costs that decisions were based on, by name.
    """

    def __init__(
        self, min_gain: float | None, launch: Launch, models: dict[str, str], pass_of_host: Callable[[], float] | None
    ) -> None:
        if min_gain is not None and min_gain < 0:
            raise ConfigError(f"min_gain must be a share of at least 0, got {min_gain}")
        if isinstance(launch, str) and launch not in ("eager", "graph"):
            raise ConfigError(f"launch must be 'eager', 'graph' or measured host costs, got {launch!r}")
        self._min_gain, self._launch, self._models = min_gain, launch, models
        self._pass_of_host = pass_of_host
        self._works: dict[str, list[Work]] = {}
        self._operands: _Operands | None = None
        self.host: dict[str, HostCost] = {}

    def decide(self, layers: Sequence[Layer], calls: Calls, rest: Rest) -> Decision:
        """Return the decisions on layers, given their calls by name, and on the rest of an eager training step."""
        ways = {layer.name: self._ways(layer, calls[layer.name]) for layer in layers}
        if self._launch == "graph":
            return Decision(tuple(reports[-1] for reports in ways.values()), ())
        norms = self._works_of_norms(rest)
        others = self._work_of_rest(rest if norms else rest.with_plain_norms)
        is_measured = self._pass_of_host is not None  # the host's part of a whole pass, not of its calls
        chosen = shortest_pass({**self._works, **norms}, others, 1.0 if is_measured else _HOST_MARGIN_OF_TRAINING)
        reports = tuple(self._decision(reports, chosen.get(name, 0)) for name, reports in ways.items())
        return Decision(reports, tuple(name for name in norms if chosen[name]))

    def _works_of_norms(self, rest: Rest) -> dict[str, list[Work]]:
        """Return the work of batch normalisations by PyTorch and by kernels, which cost the host more.

        Given costs may be without theirs, which an earlier version did not measure; then they are left.
        """
        if not rest.norms or self._operands is None:
            return {}
        dtype, device, arch = self._operands
        name = norm_cost_name(dtype)
        if not isinstance(self._launch, str) and name not in self._launch:
            return {}
        cost = self._cost(name, lambda: norm_cost(dtype, device))
        kernel_ms = cost.kernel_ms * HOST_MARGINS[LaunchForm.KERNEL]
        works = {}
        for norm, sizes in rest.norms.items():
            gpu, calls = stream_ms(sum(sizes), arch), len(sizes)
            by_pytorch = Work(_NORM_PASSES * gpu, calls * cost.pytorch_ms)
            works[norm] = [by_pytorch, Work(_NORM_PASSES_OF_KERNELS * gpu, calls * kernel_ms)]
        return works

    def _ways(self, layer: Layer, calls: Sequence[Sequence[Pass] | str]) -> list[LayerReport]:
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
        if self._launch != "graph" and not layer.module.training and not isinstance(layer.module, TRANSPOSED):
            lightest = self._by_kernels(layer, counts, in_one_launch=True)
            if [p.pick for p in lightest.passes] != [p.pick for p in picked.passes]:
                ways.append(lightest)
        if self._launch != "graph":
            self._works[name] = self._work(layer, list(counts), len(calls), [left, *ways])
        return [left, *(way for way in ways if way.replaced)]

    def _by_kernels(self, layer: Layer, counts: Mapping[Pass, int], *, in_one_launch: bool) -> LayerReport:
        """Return the decision that the GPU's part of a layer's calls would lead to."""
        name = layer.name
        passes = tuple(_report(made, n, layer, self._models, in_one_launch) for made, n in counts.items())
        unknown = next((p.why_unknown for p in passes if p.why_unknown), "")
        found = LayerReport(name, passes, True, "", layer.chain.parts if layer.chain else (), in_one_launch)
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

    def _work(self, layer: Layer, passes: Sequence[Pass], calls: int, ways: Sequence[LayerReport]) -> list[Work]:
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
        targets = [target_name(p.problem.op, p.variant, p.dtype, p.device) for p in passes]
        if self._operands is None and (dispatcher := dispatcher_named(targets[0])) is not None:
            self._operands = _Operands(first.dtype, first.device, dispatcher.arch)
        name = cost_name(layer, first.dtype, form)
        return self._cost(name, lambda: host_cost(layer, form, targets, first.dtype, first.device))

    def _cost(self, name: str, measured: Callable[[], HostCost]) -> HostCost:
        """Return a cost by its name: measured, or the one that another process measured."""
        if isinstance(self._launch, str):
            cost = measured()
        elif name in self._launch:
            cost = self._launch[name]
        else:
            raise ConfigError(f"launch has no host cost of {name}; pass report.host of a process that measured it")
        self.host[name] = cost
        return cost

    def _work_of_rest(self, rest: Rest) -> Work:
        """Return the work of a pass beside layers and normalisations by kernels: of training predicted, else measured.

        The host's part of any function of training is that of an activation, with its gradient.
        """
        if self._operands is None:
            return Work(0.0, 0.0)
        if self._pass_of_host is not None:
            return Work(0.0, self._measured_rest(self._pass_of_host))
        function_ms = max((cost.pass_ms for cost in self.host.values()), default=0.0)
        arch = self._operands.arch
        gpu = _NORM_PASSES * stream_ms(rest.normalised_bytes, arch)
        gpu += _FUNCTION_PASSES * stream_ms(rest.written_bytes, arch)
        return Work(gpu, (rest.plain_norms + rest.functions) * function_ms)

    def _measured_rest(self, pass_of_host: Callable[[], float]) -> float:
        """Return the host's milliseconds of a pass of inference for everything but the layers whose work is known."""
        if isinstance(self._launch, str):
            rest = max(pass_of_host() - sum(works[0].host for works in self._works.values()), 0.0)
            cost = HostCost(rest, rest, 0.0, 0.0)
        elif REST_OF_PASS in self._launch:
            cost = self._launch[REST_OF_PASS]
        else:  # of a version that did not measure it
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


def _report(made: Pass, calls: int, layer: Layer, models: dict[str, str], in_one_launch: bool) -> PassReport:
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
    # A transposed convolution's bias is added in the layer, as in the one whose host part is measured.
    kind = EMPTY_KIND if isinstance(layer.module, TRANSPOSED) else kind
    form = launch_form(found.pick.kernel, made.problem, dispatcher.target, kind.computed)
    times = (pytorch_ms, found.pick_ms)
    return PassReport(name, dimensions, calls, pick, *times, form=form, is_measured=found.is_measured)

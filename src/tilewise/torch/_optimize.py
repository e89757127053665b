"""Networks with those layers replaced that selected kernels compute faster than PyTorch's own calls.

The decision is a pure function of the layers' shapes and the dispatchers' models and switches: measurements, clocks and
the weights play no part. So all processes of a distributed job choose alike.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from torch import nn

from tilewise.arch import load_arch
from tilewise.errors import ConfigError, KernelError
from tilewise.kernels import EMPTY_KIND, EpilogueKind, pass_ms
from tilewise.torch._calls import Pass, record_calls
from tilewise.torch._chains import Chain, find_chains
from tilewise.torch._fused_forward import FusedForward
from tilewise.torch._layer_report import LayerReport, OptimizeReport, PassReport
from tilewise.torch._layers import REPLACEMENTS, fold_layers, replace_layer
from tilewise.torch._serving import dispatcher_named, target_name


class Optimized(NamedTuple):
    """An optimised network, and the report on it."""

    model: nn.Module
    report: OptimizeReport


def optimize(
    model: nn.Module, *example_inputs: Any, inplace: bool = False, fold: bool = True, fuse: bool = True,
    min_gain: float = 0.0,
) -> Optimized:  # fmt: skip
    """Replace the layers of a network that kernels compute faster than PyTorch, by the model's predictions.

    Convolutions and linear layers are compared on the shapes that they see while the network runs on the example; in
    training mode with their gradients, in evaluation mode with the batch normalisation, addition and activation that
    follow and that their kernels can compute too. A layer stays as it is where nothing is gained, or where the two
    cannot be compared. Parameters keep their names, so a ``state_dict`` of the original can be loaded.

    Args:
        model: the network, on the device and in the dtype in which it will run. It runs once.
        example_inputs: its arguments, of the shapes to decide on.
        inplace: change the network itself instead of a copy.
        fold: fold batch normalisations into convolutions, in evaluation mode and where the graph proves that nothing
            else reads the convolution's result. Parameters must afterwards be changed by ``load_state_dict`` or in
            training mode only.
        fuse: let replaced layers compute additions and activations after them, in evaluation mode and where the graph
            proves the same.
        min_gain: least predicted gain for which a layer is replaced, as a share of its time with PyTorch.

    Raises:
        ConfigError: `min_gain` is negative.
    """
    if min_gain < 0:
        raise ConfigError(f"min_gain must be a share of at least 0, got {min_gain}")
    if not inplace:
        model = copy.deepcopy(model)
    calls, models = record_calls(model, example_inputs), dict[str, str]()
    found = find_chains(model, fold=fold, fuse=fuse and len(example_inputs) == 1)
    modules, chains = dict(model.named_modules()), {chain.layer: chain for chain in found.chains}
    layers = tuple(_judge(_Layer(n, modules[n], chains.get(n)), made, min_gain, models) for n, made in calls.items())
    folded = _apply(model, layers, chains)
    order = list(modules)
    every = sorted((*layers, *_other_layers(modules)), key=lambda layer: order.index(layer.name))
    return Optimized(model, OptimizeReport(tuple(every), folded, found.why_none, models))


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
    def passes(self) -> list[EpilogueKind]:
        """The passes over the result by which PyTorch computes the same, one after the other.

        It adds the bias of a convolution in a pass of its own, and that of a product within its call. A normalisation
        is such a pass, or folded into a bias.
        """
        kind, is_product = self.kind, isinstance(self.module, nn.Linear)
        parts = (kind.has_bias and not is_product, kind.has_residual, bool(kind.activation))
        singly = (EpilogueKind(True), EpilogueKind(False, True), EpilogueKind(activation=kind.activation))
        return [single for single, is_there in zip(singly, parts, strict=True) if is_there]


def _apply(model: nn.Module, layers: Sequence[LayerReport], chains: Mapping[str, Chain]) -> tuple[tuple[str, str], ...]:
    """Replace layers, fold and fuse as it was decided, and return the pairs that are folded."""
    modules = dict(model.named_modules())
    replaced = {layer.name for layer in layers if layer.replaced}
    for name in replaced:
        replace_layer(modules[name])
    pairs = [(c.layer, c.norm) for c in chains.values() if c.norm and _is_worth_folding(modules[c.layer], c, replaced)]
    for conv, norm in pairs:
        fold_layers(modules[conv], modules[norm])
    fused = tuple(chain for chain in chains.values() if chain.is_fused and chain.layer in replaced)
    if fused:
        model.forward = FusedForward(model, fused).forward
    return tuple(pairs)


def _is_worth_folding(conv: nn.Module, chain: Chain, replaced: Collection[str]) -> bool:
    """Return whether folding spares a pass.

    PyTorch adds a bias in a pass of its own, which takes as long as the normalisation or up to 1.7 times as long (H200,
    bf16, 128 x 256 x 56 x 56: 278 us beside 162); a kernel of ours adds it in its store.
    """
    return conv.bias is not None or chain.layer in replaced


def _judge(
    layer: _Layer, calls: Sequence[Sequence[Pass] | str], min_gain: float, models: dict[str, str]
) -> LayerReport:
    """Return the decision on a layer, and add the dispatchers' identities to `models`."""
    name = layer.name
    if not calls:
        return LayerReport(name, (), False, "the example does not call it")
    counts: Counter[Pass] = Counter()
    for passes_of_call in calls:
        if isinstance(passes_of_call, str):
            return LayerReport(name, (), False, passes_of_call)
        counts.update(passes_of_call)
    passes = tuple(_report(made, count, layer, models) for made, count in counts.items())
    found = LayerReport(name, passes, True, "")
    unknown = next((p.why_unknown for p in passes if p.why_unknown), "")
    if unknown or found.pytorch_ms is None or found.expected_ms is None:
        return LayerReport(name, passes, False, unknown)
    gain = 1 - found.expected_ms / found.pytorch_ms
    if all(p.expected_ms == p.pytorch_ms for p in passes):
        return LayerReport(name, passes, False, "PyTorch's own call is the pick")
    if gain <= min_gain:
        return LayerReport(
            name, passes, False, f"the predicted gain is {gain:.1%}, more than {min_gain:.1%} is asked for"
        )
    return LayerReport(name, passes, True, f"the predicted gain is {gain:.1%}", _parts(layer.chain))


def _parts(chain: Chain | None) -> tuple[str, ...]:
    """Return the parts of a chain that the layer's kernel computes, as a report names them."""
    if chain is None:
        return ()
    return (*(("residual",) if chain.has_residual else ()), *((chain.activation,) if chain.activation else ()))


def _report(made: Pass, calls: int, layer: _Layer, models: dict[str, str]) -> PassReport:
    """Return the predicted times of one computation."""
    name = target_name(made.problem.op, made.variant, made.dtype, made.device)
    dispatcher, dimensions = dispatcher_named(name), made.problem.to_dict()
    if dispatcher is None:
        return PassReport(name, dimensions, calls, "", None, None, f"there is no model of {name}")
    models[name] = dispatcher.identity
    try:
        found = dispatcher.compare_with_pytorch(made.problem, layer.kind if made.is_result else EMPTY_KIND)
    except KernelError as e:
        return PassReport(name, dimensions, calls, "", None, None, f"no kernel can be selected: {e}")
    pick = found.pick.kernel_name
    if found.pick_ms is None or found.pytorch_ms is None:
        absent = "no model" if found.pick_ms is None else "no call of PyTorch's own for this problem"
        why = f"{name} has {absent}, so nothing compares them"
        return PassReport(name, dimensions, calls, pick, None, None, why)
    arch, passes = load_arch(dispatcher.target.arch), layer.passes if made.is_result else []
    pytorch_ms = found.pytorch_ms + sum(pass_ms(kind, made.problem, made.variant, arch) for kind in passes)
    return PassReport(name, dimensions, calls, pick, pytorch_ms, found.pick_ms)


def _other_layers(modules: dict[str, nn.Module]) -> list[LayerReport]:
    """Return the layers that derive from those of PyTorch, and may compute something else."""
    kinds, done = tuple(REPLACEMENTS), set(REPLACEMENTS) | set(REPLACEMENTS.values())
    return [
        LayerReport(name, (), False, f"{type(layer).__name__} derives from PyTorch's layer")
        for name, layer in modules.items()
        if isinstance(layer, kinds) and type(layer) not in done and not hasattr(layer, "folded_pair")
    ]

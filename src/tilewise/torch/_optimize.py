"""Networks with those layers replaced that selected kernels compute faster than PyTorch's own calls.

The decision is a pure function of the layers' shapes and the dispatchers' models and switches: measurements, clocks and
the weights play no part. So all processes of a distributed job choose alike.
"""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import nn

from tilewise.arch import load_arch
from tilewise.dispatch import Dispatcher
from tilewise.errors import ConfigError, KernelError
from tilewise.ops import GemmProblem
from tilewise.torch._calls import Pass, record_calls
from tilewise.torch._folding import FoundPairs, find_pairs
from tilewise.torch._layer_report import LayerReport, OptimizeReport, PassReport
from tilewise.torch._layers import REPLACEMENTS, fold_layers, replace_layer
from tilewise.torch._serving import dispatcher_named, target_name

_BYTES = 2  # of an element: bf16 or fp16


class Optimized(NamedTuple):
    """An optimised network, and the report on it."""

    model: nn.Module
    report: OptimizeReport


def optimize(
    model: nn.Module, *example_inputs: Any, inplace: bool = False, fold: bool = True, min_gain: float = 0.0
) -> Optimized:
    """Replace the layers of a network that kernels compute faster than PyTorch, by the model's predictions.

    Convolutions and linear layers are compared on the shapes that they see while the network runs on the example; in
    training mode with their gradients. A layer stays as it is where PyTorch's own call is the pick, or where the two
    cannot be compared. Parameters keep their names, so a ``state_dict`` of the original can be loaded.

    Args:
        model: the network, on the device and in the dtype in which it will run. It runs once.
        example_inputs: its arguments, of the shapes to decide on.
        inplace: change the network itself instead of a copy.
        fold: fold batch normalisations into convolutions, in evaluation mode and where the graph proves that nothing
            else reads the convolution's result. Parameters must afterwards be changed by ``load_state_dict`` or in
            training mode only.
        min_gain: least predicted gain for which a layer is replaced, as a share of its time with PyTorch.

    Raises:
        ConfigError: `min_gain` is negative.
    """
    if min_gain < 0:
        raise ConfigError(f"min_gain must be a share of at least 0, got {min_gain}")
    if not inplace:
        model = copy.deepcopy(model)
    calls, models = record_calls(model, example_inputs), dict[str, str]()
    layers = tuple(_judge(name, made, min_gain, models) for name, made in calls.items())
    found = find_pairs(model) if fold else FoundPairs((), "fold=False")
    modules = dict(model.named_modules())
    for layer in layers:
        if layer.replaced:
            replace_layer(modules[layer.name])
    for conv, norm in found.pairs:
        fold_layers(modules[conv], modules[norm])
    order = list(modules)
    every = sorted((*layers, *_other_layers(modules)), key=lambda layer: order.index(layer.name))
    return Optimized(model, OptimizeReport(tuple(every), found.pairs, found.why_none, models))


def _judge(name: str, calls: Sequence[Sequence[Pass] | str], min_gain: float, models: dict[str, str]) -> LayerReport:
    """Return the decision on a layer, and add the dispatchers' identities to `models`."""
    if not calls:
        return LayerReport(name, (), False, "the example does not call it")
    counts: Counter[Pass] = Counter()
    for passes_of_call in calls:
        if isinstance(passes_of_call, str):
            return LayerReport(name, (), False, passes_of_call)
        counts.update(passes_of_call)
    passes = tuple(_report(made, count, models) for made, count in counts.items())
    layer = LayerReport(name, passes, True, "")
    unknown = next((p.why_unknown for p in passes if p.why_unknown), "")
    if unknown or layer.pytorch_ms is None or layer.expected_ms is None:
        return LayerReport(name, passes, False, unknown)
    gain = 1 - layer.expected_ms / layer.pytorch_ms
    if all(p.expected_ms == p.pytorch_ms for p in passes):
        return LayerReport(name, passes, False, "PyTorch's own call is the pick")
    if gain <= min_gain:
        return LayerReport(
            name, passes, False, f"the predicted gain is {gain:.1%}, more than {min_gain:.1%} is asked for"
        )
    return LayerReport(name, passes, True, f"the predicted gain is {gain:.1%}")


def _report(made: Pass, calls: int, models: dict[str, str]) -> PassReport:
    """Return the predicted times of one computation."""
    name = target_name(made.problem.op, made.variant, made.dtype, made.device)
    dispatcher, dimensions = dispatcher_named(name), made.problem.to_dict()
    if dispatcher is None:
        return PassReport(name, dimensions, calls, "", None, None, f"there is no model of {name}")
    models[name] = dispatcher.identity
    try:
        found = dispatcher.compare_with_pytorch(made.problem)
    except KernelError as e:
        return PassReport(name, dimensions, calls, "", None, None, f"no kernel can be selected: {e}")
    pick = found.pick.kernel_name
    if found.pick_ms is None or found.pytorch_ms is None:
        absent = "no model" if found.pick_ms is None else "no call of PyTorch's own for this problem"
        why = f"{name} has {absent}, so nothing compares them"
        return PassReport(name, dimensions, calls, pick, None, None, why)
    expected = found.pick_ms if found.is_pytorch else found.pick_ms + _bias_ms(made, dispatcher)
    return PassReport(name, dimensions, calls, pick, found.pytorch_ms, expected)


def _bias_ms(made: Pass, dispatcher: Dispatcher) -> float:
    """Return the time to read and write a product once, as adding a bias does; PyTorch's call includes it."""
    if not made.has_bias or not isinstance(made.problem, GemmProblem):
        return 0.0
    return 2 * made.problem.M * made.problem.N * _BYTES / (load_arch(dispatcher.target.arch).dram_gb_s * 1e6)


def _other_layers(modules: dict[str, nn.Module]) -> list[LayerReport]:
    """Return the layers that derive from those of PyTorch, and may compute something else."""
    kinds, done = tuple(REPLACEMENTS), set(REPLACEMENTS) | set(REPLACEMENTS.values())
    return [
        LayerReport(name, (), False, f"{type(layer).__name__} derives from PyTorch's layer")
        for name, layer in modules.items()
        if isinstance(layer, kinds) and type(layer) not in done and not hasattr(layer, "folded_pair")
    ]

"""Host time of eager calls of layers, by a kernel and by PyTorch, measured on this machine.

A short kernel ends before the host has launched the next one, so an eager call lasts as long as its host part. Calls
of tiny layers are queued without waiting for the GPU; the median of a few batches counts.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from tilewise.dispatch import Dispatcher, Switches
from tilewise.errors import ConfigError
from tilewise.kernels import Pool
from tilewise.torch._layers import replace_layer
from tilewise.torch._serving import dispatcher_named, use

_BATCHES, _CALLS = 11, 40  # fewer launches than a GPU queues
_SIZE = 16  # channels and pixels of the tiny layers: a multiple of a vector of loads


@dataclass(frozen=True)
class HostCost:
    """Host milliseconds of one eager call, in training with its gradients.

    Attributes:
        kernel_ms: of a layer of tilewise that runs a kernel; in inference with an activation, as most layers have one.
        pytorch_ms: of PyTorch's layer.
        pass_ms: of one function over a tensor, such as an activation.
    """

    kernel_ms: float
    pytorch_ms: float
    pass_ms: float


_known: dict[tuple[str, torch.device], HostCost] = {}


def cost_name(layer: nn.Module, dtype: torch.dtype) -> str:
    """Return the name under which a layer's cost is reported: its class, the dtype, and whether it trains."""
    mode = "training" if layer.training else "inference"
    return f"{type(layer).__name__} {str(dtype).removeprefix('torch.')} {mode}"


def host_cost(layer: nn.Module, targets: Sequence[str], dtype: torch.dtype, device: torch.device) -> HostCost:
    """Return the cost of layers of this class; it is measured once in a process.

    Args:
        layer: a convolution or linear layer of PyTorch, in training or evaluation mode.
        targets: names of the targets whose dispatchers compute it.
        dtype: of its operands.
        device: of its operands.
    """
    key = cost_name(layer, dtype), device
    if key not in _known:
        found = [d for d in map(dispatcher_named, dict.fromkeys(targets)) if d is not None]
        with use(*map(_of_kernels, found)):
            _known[key] = _measure(type(layer), layer.training, dtype, device)
    return _known[key]


def _of_kernels(dispatcher: Dispatcher) -> Dispatcher:
    """Return a dispatcher of the same pool that selects a kernel of tilewise wherever there is one."""
    target = dispatcher.target
    pool = Pool(target.op, target.variant, target.dtype, dispatcher.kernels)
    try:
        return Dispatcher(target, pool, None, switches=Switches.read().but(vendor="off", measure="off"))
    except ConfigError:  # the pool has PyTorch's own calls alone
        return dispatcher


def _measure(kind: type[nn.Module], is_training: bool, dtype: torch.dtype, device: torch.device) -> HostCost:
    own, x = _tiny(kind, dtype, device)
    for parameter in own.train(is_training).parameters():
        nn.init.zeros_(parameter)
    ours = copy.deepcopy(own)
    replace_layer(ours)
    ended = ours if is_training else partial(ours, activation="relu")
    layers = (ended, own, nn.functional.relu)
    with torch.set_grad_enabled(is_training):
        kernel_ms, pytorch_ms, pass_ms = (_milliseconds(_call(layer, x, is_training), device) for layer in layers)
    return HostCost(kernel_ms, pytorch_ms, pass_ms)


def _tiny(kind: type[nn.Module], dtype: torch.dtype, device: torch.device) -> tuple[nn.Module, Tensor]:
    """Return a small layer, made without random numbers, and an input."""
    if kind is nn.Linear:
        layer = nn.utils.skip_init(kind, _SIZE, _SIZE, dtype=dtype, device=device)
        return layer, torch.zeros(_SIZE, _SIZE, dtype=dtype, device=device)
    ndim = 2 if kind is nn.Conv2d else 3
    layout = torch.channels_last if ndim == 2 else torch.channels_last_3d
    layer = nn.utils.skip_init(kind, _SIZE, _SIZE, 3, padding=1, dtype=dtype, device=device)
    x = torch.zeros(1, _SIZE, *(4,) * ndim, dtype=dtype, device=device)
    return layer.to(memory_format=layout), x.to(memory_format=layout)


def _call(function: Callable[[Tensor], Tensor], x: Tensor, is_training: bool) -> Callable[[], object]:
    if not is_training:
        return lambda: function(x)
    learnt = x.clone().requires_grad_()
    return lambda: function(learnt).backward(x)


def _milliseconds(call: Callable[[], object], device: torch.device) -> float:
    """Return the median host time of a call; the first batch warms it."""
    times = []
    for _ in range(1 + _BATCHES):
        if device.type == "cuda":
            torch.cuda.synchronize(device)
        start = time.perf_counter()
        for _ in range(_CALLS):
            call()
        times.append((time.perf_counter() - start) * 1e3 / _CALLS)
    return statistics.median(times[1:])

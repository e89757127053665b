"""Host time of eager calls of layers, as selected kernels and as PyTorch compute them, measured on this machine.

A short kernel ends before the host has launched the next one, so an eager call lasts as long as its host part. That
depends on the form of the launch: a second kernel, or another call of the library, costs as much as the first. Calls of
tiny layers are queued without waiting for the GPU; the median of a few batches counts.
"""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import partial

import torch
from torch import Tensor, nn

from tilewise.dispatch import Dispatcher, Switches
from tilewise.kernels import STORED_FORMATS, EpilogueKind, KernelBase, Pool, backend_of
from tilewise.kernels.triton import TRITON, Kernel
from tilewise.kernels.vendor import VendorCall
from tilewise.ops import Problem, Target
from tilewise.torch._calls import unchanged
from tilewise.torch._layers import TRANSPOSED, kind_of, replace_layer
from tilewise.torch._serving import dispatcher_named, use
from tilewise.torch.norm import replace_norm

_BATCHES, _CALLS = 11, 40  # fewer launches than a GPU queues
_PASSES = 3
_SIZE, _LONG_SIZE = 64, 512  # channels, and terms of a sum: enough for kernels that split it
_WIDTH = 4  # pixels along an axis


class LaunchForm(StrEnum):
    """A way in which the host launches the work of a layer of tilewise."""

    KERNEL = "a kernel"
    TWO_KERNELS = "two kernels"  # a reduction or a pass follows
    LIBRARY = "the library"
    LIBRARY_WITH_RESIDUAL = "the library with a residual"
    LIBRARY_AND_KERNEL = "the library and a kernel"


# How much more than measured a call may take the host. Three measurements of one call in a process differed by 14 %
# (H200's host). A library's call with an epilogue takes longer between other layers' calls than alone: 56 us beside 33,
# where a plain one takes 22 beside 17 (H100's host).
_MARGIN, _LIBRARY_MARGIN = 1.15, 1.5
HOST_MARGINS = {form: _LIBRARY_MARGIN if "library" in form else _MARGIN for form in LaunchForm}
REST_OF_PASS = "the rest of a pass"

_FUSED_BY_LIBRARY, _LEFT_BY_LIBRARY = "relu", "silu"  # activations


@dataclass(frozen=True)
class HostCost:
    """Host milliseconds of one eager call, in training with its gradients.

    Attributes:
        kernel_ms: of a layer of tilewise; in inference with an activation, as most layers have one.
        pytorch_ms: of PyTorch's layer, with a bias.
        pass_ms: of one function over a tensor, such as an activation.
        norm_ms: of a batch normalisation for inference; 0 for a cost of normalisations.
    """

    kernel_ms: float
    pytorch_ms: float
    pass_ms: float
    norm_ms: float


_known: dict[tuple[str, torch.device], HostCost] = {}


def launch_form(kernel: KernelBase, problem: Problem, target: Target, kind: EpilogueKind) -> LaunchForm:
    """Return how the host launches a kernel or a call of the library, for a problem with an epilogue."""
    is_followed = not backend_of(kernel).leaves(kernel, problem, target, kind).is_empty
    if not isinstance(kernel, VendorCall):
        reduces = isinstance(kernel, Kernel) and not TRITON.is_one_launch(kernel, problem, target.variant)
        return LaunchForm.TWO_KERNELS if is_followed or reduces else LaunchForm.KERNEL
    if is_followed:
        return LaunchForm.LIBRARY_AND_KERNEL
    return LaunchForm.LIBRARY_WITH_RESIDUAL if kind.has_residual else LaunchForm.LIBRARY


def cost_name(layer: nn.Module, dtype: torch.dtype, form: LaunchForm) -> str:
    """Return the name under which a layer's cost is reported: its class, the dtype, whether it trains, and the form."""
    mode = "training" if layer.training else "inference"
    bias = " without bias" if isinstance(layer, TRANSPOSED) and layer.bias is None else ""
    return f"{_class(layer).__name__}{bias} {str(dtype).removeprefix('torch.')} {mode} by {form}"


def _class(layer: nn.Module) -> type[nn.Module]:
    """Return the class of PyTorch that a layer computes as, whose constructor is known."""
    return kind_of(layer) or type(layer)


def host_cost(
    layer: nn.Module, form: LaunchForm, targets: Sequence[str], dtype: torch.dtype, device: torch.device
) -> HostCost:
    """Return the cost of layers of this class; it is measured once in a process.

    Args:
        layer: a convolution or linear layer of PyTorch, in training or evaluation mode.
        form: of the launch that gives its result.
        targets: names of the targets whose dispatchers compute it.
        dtype: of its operands.
        device: of its operands.
    """
    key = cost_name(layer, dtype, form), device
    if key not in _known:
        found = [d for d in map(dispatcher_named, dict.fromkeys(targets)) if d is not None]
        with use(*(_launching(dispatcher, form) for dispatcher in found)):
            _known[key] = _measure(layer, form, dtype, device)
    return _known[key]


def norm_cost_name(dtype: torch.dtype) -> str:
    """Return the name under which the cost of normalisations of ours is reported."""
    return f"{nn.BatchNorm2d.__name__} {str(dtype).removeprefix('torch.')} training"


def norm_cost(dtype: torch.dtype, device: torch.device) -> HostCost:
    """Return the cost of batch normalisations; measured once in a process.

    Args:
        dtype: of the operands, and of the parameters.
        device: of both.
    """
    key = norm_cost_name(dtype), device
    if key not in _known:
        theirs = nn.BatchNorm2d(_SIZE, dtype=dtype, device=device)
        ours = copy.deepcopy(theirs)
        replace_norm(ours)
        x = torch.zeros(2, _SIZE, 4, 4, dtype=dtype, device=device).to(memory_format=torch.channels_last)
        with torch.enable_grad():
            batches = [_batch(function, x, is_training=True) for function in (ours, theirs, nn.functional.relu)]
            kernel, pytorch, one_pass = _milliseconds(batches)
        _known[key] = HostCost(kernel, pytorch, one_pass, 0.0)
    return _known[key]


def _launching(dispatcher: Dispatcher, form: LaunchForm) -> Dispatcher:
    """Return a dispatcher of those kernels of a pool that are launched so, or else of others."""
    target, own = dispatcher.target, [k for k in dispatcher.kernels if isinstance(k, Kernel)]
    is_library = form not in (LaunchForm.KERNEL, LaunchForm.TWO_KERNELS)
    alike = [k for k in own if (k.split_k > 1) == (form is LaunchForm.TWO_KERNELS)]
    kernels = [k for k in dispatcher.kernels if isinstance(k, VendorCall)] if is_library else alike or own
    if not kernels:
        return dispatcher
    pool = Pool(target.op, target.variant, target.dtype, tuple(kernels))
    return Dispatcher(target, pool, None, switches=Switches.read().but(vendor="on", measure="off"))


def _measure(layer: nn.Module, form: LaunchForm, dtype: torch.dtype, device: torch.device) -> HostCost:
    kind, is_training = _class(layer), layer.training
    own, x = _tiny(kind, is_training, dtype, device)
    is_transposed = isinstance(layer, TRANSPOSED)
    if is_transposed and layer.bias is None:  # they add a bias by a call of its own
        own.bias = None
    for parameter in own.train(is_training).parameters():
        nn.init.zeros_(parameter)
    ours = copy.deepcopy(own)
    replace_layer(ours)
    activation = _LEFT_BY_LIBRARY if form is LaunchForm.LIBRARY_AND_KERNEL else _FUSED_BY_LIBRARY
    zeros, ones = (make(x.shape[1], dtype=dtype, device=device) for make in (torch.zeros, torch.ones))
    with torch.set_grad_enabled(is_training):
        residual = own(x).detach() if form is LaunchForm.LIBRARY_WITH_RESIDUAL else None
        ended = ours if is_training or is_transposed else partial(ours, residual=residual, activation=activation)
        norm = partial(nn.functional.batch_norm, running_mean=zeros, running_var=ones, weight=ones, bias=zeros)
        batches = [_batch(function, x, is_training) for function in (ended, own, nn.functional.relu, norm)]
        return HostCost(*_milliseconds(batches))


def _tiny(
    kind: type[nn.Module], is_training: bool, dtype: torch.dtype, device: torch.device
) -> tuple[nn.Module, Tensor]:
    """Return a small layer, made without random numbers, and an input; in training gradients are long sums too."""
    if kind is nn.Linear:
        size = _LONG_SIZE if is_training else _SIZE
        layer = nn.utils.skip_init(kind, _LONG_SIZE, size, dtype=dtype, device=device)
        return layer, torch.zeros(size, _LONG_SIZE, dtype=dtype, device=device)
    ndim = 2 if kind in (nn.Conv2d, nn.ConvTranspose2d) else 3
    layout, image = STORED_FORMATS[ndim + 2], (_WIDTH,) * ndim
    layer = nn.utils.skip_init(kind, _SIZE, _SIZE, 3, padding=1, dtype=dtype, device=device)
    images = max(1, _LONG_SIZE // _WIDTH**ndim) if is_training else 1
    x = torch.zeros(images, _SIZE, *image, dtype=dtype, device=device)
    return layer.to(memory_format=layout), x.to(memory_format=layout)


def host_ms_of_pass(model: nn.Module, inputs: Sequence[object]) -> float:
    """Return the host's milliseconds of a pass of a network in evaluation mode; it runs for real, and stays as it is.

    cuDNN searches nothing meanwhile: neither its search nor the algorithms that it would find are the host's work.
    """
    searched, torch.backends.cudnn.benchmark = torch.backends.cudnn.benchmark, False
    taken = []
    try:
        with unchanged(model), torch.no_grad():
            for _ in range(1 + _PASSES):
                _wait()
                start = time.perf_counter()
                model(*inputs)
                taken.append((time.perf_counter() - start) * 1e3)
            _wait()
    finally:
        torch.backends.cudnn.benchmark = searched
    return min(taken[1:])


def _wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _batch(function: Callable[[Tensor], Tensor], x: Tensor, is_training: bool) -> Callable[[], None]:
    """Return a function that makes a batch of calls.

    In training it computes their gradients together, as a step does. One by one they wait for a thread of autograd's:
    summed over the calls of a network, such times were twice those of its steps (H200's host).
    """
    if not is_training:

        def infer() -> None:
            for _ in range(_CALLS):
                function(x)

        return infer
    # As in a network, nothing is shared, so that no gradients are added up.
    calls = [(copy.deepcopy(function), x.clone().requires_grad_()) for _ in range(_CALLS)]
    learnt = [given for _, given in calls]
    learnt += [p for call, _ in calls if isinstance(call, nn.Module) for p in call.parameters()]

    def step() -> None:
        for t in learnt:
            t.grad = None
        results = [call(given) for call, given in calls]
        torch.autograd.backward(results, [y.detach() for y in results])

    return step


def _milliseconds(batches: Sequence[Callable[[], None]]) -> list[float]:
    """Return the median host time of a call of each batch; they alternate, and the first run of each warms it."""
    times: list[list[float]] = [[] for _ in batches]
    for _ in range(1 + _BATCHES):
        for batch, taken in zip(batches, times, strict=True):
            _wait()
            start = time.perf_counter()
            batch()
            taken.append((time.perf_counter() - start) * 1e3 / _CALLS)
    return [statistics.median(taken[1:]) for taken in times]

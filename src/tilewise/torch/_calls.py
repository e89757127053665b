"""Problems that the layers of a network compute while it runs on examples."""

from __future__ import annotations

import contextlib
import copy
import logging
import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._pytree import tree_leaves

from tilewise.errors import one_line
from tilewise.ops import GemmProblem, GroupedConvProblem, Problem
from tilewise.torch import _functional as functional
from tilewise.torch import _operators as operators
from tilewise.torch import _transposed as transposed
from tilewise.torch._layers import TRANSPOSED, kind_of, transposed_arguments

_log = logging.getLogger(__name__)

T = TypeVar("T")


class Pass(NamedTuple):
    """One computation of a layer: its result, or a gradient."""

    variant: str
    problem: Problem
    dtype: torch.dtype
    device: torch.device
    is_result: bool


Calls = dict[str, list[Sequence[Pass] | str]]  # per layer: the passes of each call, or why PyTorch has to compute it


def on_example(model: nn.Module, run: Callable[[nn.Module], T]) -> T:
    """Return the findings of a run of a network on its example; the network stays as it is.

    A copy runs on fake tensors, which have shapes but no values: nothing is computed, and cuDNN searches no algorithms.
    A network that reads values runs for real; then the buffers (running statistics) are put back. So are the random
    generators in either case.
    """
    try:
        with random_numbers_kept(model), FakeTensorMode(allow_non_fake_inputs=True) as fake:
            return run(_fake_copy(model, fake))
    except Exception as e:  # whatever is wrong with the network itself is raised by the real run
        _log.info("the network runs on its example for real, as fake tensors do not suffice: %s", one_line(e))
    with unchanged(model):
        return run(model)


def _fake_copy(model: nn.Module, fake: FakeTensorMode) -> nn.Module:
    """Return a copy whose tensors have no values, so that a pass cannot leave any in the network.

    Tensors may also be plain attributes of modules, such as anchors and rotations of positions.
    """
    kept = (t for module in model.modules() for t in tree_leaves(list(vars(module).values())))
    return copy.deepcopy(model, {id(t): fake.from_tensor(t) for t in kept if isinstance(t, Tensor)})


@contextlib.contextmanager
def recording(
    model: nn.Module, aside: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext
) -> Iterator[Calls]:
    """Record the calls of a network's layers by name while it runs.

    In training mode its gradients' problems are recorded too, as a step of training would compute them.

    Args:
        model: the network.
        aside: the context in which a call's operands are looked at, which may take operators of PyTorch.
    """
    layers = {name: layer for name, layer in model.named_modules() if kind_of(layer) is not None}
    calls: Calls = {name: [] for name in layers}
    with contextlib.ExitStack() as stack:
        stack.enter_context(torch.set_grad_enabled(model.training))
        for name, layer in layers.items():
            hook = layer.register_forward_pre_hook(_recorder(calls[name], aside), with_kwargs=True)
            stack.callback(hook.remove)
        yield calls


def _recorder(into: list[Sequence[Pass] | str], aside: Callable[[], contextlib.AbstractContextManager[None]]) -> Any:
    def record(layer: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        named = dict(zip(("input", "output_size"), args, strict=False)) | kwargs
        with aside():
            into.append(_passes(layer, named["input"], named.get("output_size")))

    return record


def _passes(layer: nn.Module, x: Tensor, output_size: Sequence[int] | None) -> Sequence[Pass] | str:
    """Return the passes of a call, or why PyTorch has to compute it; transposed convolutions may be given a size."""
    if "forward" in vars(layer):
        return "its forward is not that of its class"
    gradient_of_input = x.requires_grad
    with torch.no_grad():
        x, w = functional.autocast(x), functional.autocast(layer.weight)
        if not functional.served(x, w):
            return f"there are no kernels for {x.dtype} on {x.device.type}"
        if isinstance(layer, nn.Linear):
            problems = _product(x, w)
        elif layer.padding_mode != "zeros":
            return f"padding with {layer.padding_mode} is PyTorch's"
        elif isinstance(layer, TRANSPOSED):
            problems = _transposed_convolution(layer, x, w, output_size)
        else:
            problems = _convolution(layer, x, w)
    if problems is None:
        return "the call is left to PyTorch by its arguments"
    wanted = (True, layer.training and gradient_of_input, layer.training and layer.weight.requires_grad)
    problems = [problem for problem, is_wanted in zip(problems, wanted, strict=True) if is_wanted]
    return [Pass(variant, p, x.dtype, x.device, i == 0) for i, (variant, p) in enumerate(problems)]


def _convolution(layer: nn.Module, x: Tensor, w: Tensor) -> list[tuple[str, Problem]] | None:
    ndim = w.dim() - 2
    arguments = functional.Arguments(ndim, layer.stride, layer.padding, layer.dilation, layer.groups)
    geometry = functional.geometry_of(x, w, arguments)
    if geometry is None:
        return None
    batch = x.shape[0] if x.dim() == ndim + 2 else 1
    sizes = [size + end for size, end in zip(x.shape[-ndim:], geometry.end_pads, strict=True)]
    shape = (batch, x.shape[-ndim - 1], *sizes)
    problem = operators.shaped_problem(
        shape, w.shape, geometry.strides, geometry.pads, geometry.dilations, layer.groups
    )
    return [(variant, problem) for variant in GroupedConvProblem.variants]


def _transposed_convolution(
    layer: nn.Module, x: Tensor, w: Tensor, output_size: Sequence[int] | None
) -> list[tuple[str, Problem]] | None:
    geometry = transposed.geometry_of(x, w, transposed_arguments(layer, x, output_size))
    if geometry is None:
        return None
    problem = operators.shaped_problem(geometry.sizes, w.shape, *geometry[1:])
    return [(variant, problem) for variant in transposed.VARIANTS]


def _product(x: Tensor, w: Tensor) -> list[tuple[str, Problem]] | None:
    if x.dim() < 2 or x.shape[-1] != w.shape[1]:
        return None
    if x.is_contiguous() and w.is_contiguous():  # without views, which take fake tensors longer than all the rest
        forward = GemmProblem(x.numel() // x.shape[-1], w.shape[0], w.shape[1], "rcr")
    else:
        forward = operators.mm_problem(x.reshape(-1, x.shape[-1]), w.t())
    return [("universal", problem) for problem in (forward, *operators.mm_gradients(forward))]


@contextlib.contextmanager
def random_numbers_kept(model: nn.Module) -> Iterator[Callable[[], bool]]:
    """Put back the random generators of Python, NumPy and PyTorch; yield a function that tells if one has moved."""

    def states() -> tuple[object, ...]:
        own = (torch.get_rng_state(), *map(torch.cuda.get_rng_state, _devices(model)))
        return random.getstate(), repr(np.random.get_state(legacy=False)), *(state.tolist() for state in own)

    before, of_python, of_numpy = states(), random.getstate(), np.random.get_state()
    try:
        with torch.random.fork_rng(devices=_devices(model)):
            yield lambda: states() != before
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)


@contextlib.contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """Put back the random generators and a network's buffers after it ran for real."""
    kept = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        with random_numbers_kept(model):
            yield
    finally:
        with torch.no_grad():
            for buffer, before in kept:
                buffer.copy_(before)


def _devices(model: nn.Module) -> list[int]:
    """Return the indices of the CUDA devices that hold a part of the network."""
    return sorted({t.get_device() for t in model.parameters() if t.device.type == "cuda"})

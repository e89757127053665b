"""Calls keep autograd's rules: checkpoints, hooks for saved tensors, frozen operands, transforms of functions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.func import grad, jvp, vmap
from torch.nn import functional as own
from torch.utils.checkpoint import checkpoint

import tilewise.torch as ours
from kernels.dispatchers import dispatcher_of
from tilewise.ops import OPS
from tilewise.torch import _ended as ended
from torch_functions.compare import close, half
from torch_functions.predicting import CALLS, KERNELS

Function = Callable[..., torch.Tensor]


@pytest.fixture(params=["kernels", "PyTorch's calls"], autouse=True)
def _served(request: pytest.FixtureRequest) -> Any:
    """Install dispatchers that know kernels alone, or PyTorch's own calls alone."""
    configs = KERNELS if request.param == "kernels" else CALLS
    with ours.use(*(dispatcher_of(op, v, configs[op]) for op in ("grouped_conv", "gemm") for v in OPS[op].variants)):
        yield


@pytest.mark.parametrize("frozen", ["", "input", "weight"])
@pytest.mark.parametrize("bias", [False, True])
def test_a_checkpoint_repeats_a_call(frozen: str, bias: bool) -> None:
    operands = [half(3, 8), half(4, 8)]
    added = half(4).requires_grad_() if bias else None
    for operand, name in zip(operands, ("input", "weight"), strict=True):
        operand.requires_grad_(name != frozen)
    graded = [t for t in (*operands, added) if t is not None and t.requires_grad]
    right = torch.autograd.grad(own.linear(operands[0], operands[1], added).float().sum(), graded)
    for _ in range(2):
        y = checkpoint(lambda x: ours.linear(x, operands[1], added), operands[0], use_reentrant=False)
        for found, expected in zip(torch.autograd.grad(y.float().sum(), graded), right, strict=True):
            close(found, expected)


ENDED: dict[str, Callable[[], torch.Tensor]] = {
    "convolution": lambda: ended.conv_ended(graded(1, 4, 5, 5), graded(4, 4, 3, 3), graded(4), None, "relu",
                                            [1, 1], [1, 1], [1, 1], 1),
    "product": lambda: ended.mm_ended(graded(3, 8), graded(8, 4), graded(4), None, "relu"),
    "product, silu": lambda: ended.mm_ended(graded(3, 8), graded(8, 4), graded(4), None, "silu"),
}  # fmt: skip


def graded(*shape: int) -> torch.Tensor:
    return half(*shape).requires_grad_()


@pytest.mark.parametrize("name", ENDED)
def test_saved_tensors_are_read_once(name: str) -> None:
    saved, read = [], []

    def pack(t: torch.Tensor) -> torch.Tensor:
        saved.append(t.shape)
        return t

    def unpack(t: torch.Tensor) -> torch.Tensor:
        read.append(t.shape)
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
        y = ENDED[name]()
    y.float().sum().backward()
    assert sorted(read) == sorted(saved)


@pytest.mark.parametrize("frozen", [0, 1])
@pytest.mark.parametrize(
    "function",
    [ours.matmul, lambda a, b: ended.mm_ended(a, b, None, None, "relu"), lambda a, b: ours.linear(a, b.t(), None)],
    ids=["matmul", "with an end", "linear"],
)
def test_a_product_keeps_what_its_gradients_read(function: Function, frozen: int) -> None:
    for _ in range(2):  # the second call takes the short way
        operands = [half(5, 8), half(8, 4)]
        operands[1 - frozen].requires_grad_()
        y = function(*operands)
        with torch.no_grad():
            operands[1 - frozen].zero_()  # autograd would refuse a gradient that reads it
        y.float().sum().backward()
        assert operands[1 - frozen].grad is not None


def test_a_frozen_layer_may_be_added_to_its_input() -> None:
    layer = nn.Linear(8, 8).half().requires_grad_(False)
    x = half(3, 8).requires_grad_()
    y = x * 1
    y += ours.linear(y, layer.weight)
    y.float().sum().backward()
    close(x.grad, 1 + layer.weight.float().sum(0).half().expand(3, 8))


@pytest.mark.parametrize("transform", [jvp, grad], ids=["jvp", "grad"])
def test_derivatives_of_compiled_functions(transform: Any) -> None:
    w = half(4, 4, 3, 3)

    def derivative(function: Function, x: torch.Tensor) -> torch.Tensor:
        if transform is jvp:
            return jvp(lambda z: function(z, w), (x,), (x,))[1]
        return grad(lambda z: function(z, w).float().sum())(x)

    x = half(1, 4, 5, 5)
    torch._dynamo.reset()
    compiled = torch.compile(lambda x: derivative(ours.conv2d, x), backend="aot_eager")
    close(compiled(x), derivative(own.conv2d, x))


@pytest.mark.parametrize("name", ["conv2d", "conv_transpose2d", "linear"])
def test_vmap_of_a_known_call(name: str) -> None:
    function, right = getattr(ours, name), getattr(own, name)
    x, w = (half(2, 1, 3, 8), half(4, 8)) if name == "linear" else (half(2, 1, 4, 5, 5), half(4, 4, 3, 3))
    for _ in range(2):
        close(vmap(lambda x: function(x, w))(x), vmap(lambda x: right(x, w))(x))
        function(x[0], w)


def test_flags_that_may_not_be_set_globally(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", False)
    with monkeypatch.context() as frozen, torch.no_grad():
        # As `disable_global_flags` sets it, which cannot be undone.
        frozen.setitem(torch.backends.flags_frozen.__globals__, "__allow_nonbracketed_mutation_flag", False)
        for _ in range(2):
            close(ours.conv2d(x := half(1, 4, 5, 5), w := half(4, 4, 3, 3)), own.conv2d(x, w))

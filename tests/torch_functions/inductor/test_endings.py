"""Bias, residual and activation after a convolution or product are found in decomposed graphs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as own

from tilewise.kernels.triton.programs import interpreted
from torch_functions.compare import assert_same, close, half
from torch_functions.inductor.graphs import compiled, serve

pytestmark = pytest.mark.skipif(not interpreted(), reason="a GPU is there: what runs on it is tested on it")

ACTIVATIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "relu": own.relu,
    "silu": own.silu,
    "gelu": own.gelu,
    "gelu_tanh": lambda x: own.gelu(x, approximate="tanh"),
    "hardswish": own.hardswish,
}
CONV = ((1, 4, 6, 5), (4, 4, 3, 3), (4,), (1, 4, 6, 5))
LINEAR = ((2, 3, 8), (4, 8), (4,), (2, 3, 4))


def conv(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> torch.Tensor:
    return own.conv2d(x, w, b, padding=1)


def taken(function: Callable[..., Any], *operands: torch.Tensor) -> tuple[list[str], list[str]]:
    """Return the calls of kernels in the graph of a function for inference, and the nodes beside them."""
    compiled_function, graphs = compiled(function)
    with torch.no_grad(), serve("forward", "universal"):
        close(compiled_function(*operands), function(*operands))
    return [n for n in graphs.forward if n.startswith("tilewise.")], graphs.fused()


@pytest.mark.long
@pytest.mark.parametrize("name", ACTIVATIONS)
@pytest.mark.parametrize(("layer", "shapes"), [(conv, CONV), (own.linear, LINEAR)])
def test_every_activation_is_taken_with_bias_and_residual(layer: Any, shapes: Any, name: str) -> None:
    operands = [half(*s) for s in shapes]
    kernels, others = taken(lambda x, w, b, r: ACTIVATIONS[name](r + layer(x, w, b)), *operands)
    assert (len(kernels), others) == (1, [])
    assert kernels[0].endswith("_ended")


@pytest.mark.long
@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, b, r: own.linear(x, w) + r,
        lambda x, w, b, r: own.linear(x, w) + b,
        lambda x, w, b, r: (own.linear(x, w) + r) + b,
        lambda x, w, b, r: own.linear(x, w, b).relu(),
    ],
)
def test_parts_of_it(function: Callable[..., Any]) -> None:
    kernels, others = taken(function, *(half(*s) for s in LINEAR))
    assert (kernels, others) == (["tilewise.mm_ended"], [])


@pytest.mark.long
@pytest.mark.parametrize(
    "function",
    [
        lambda x, w, b, r: (y := conv(x, w, b)).relu() * y,  # the value before is read
        lambda x, w, b, r: conv(x, w) + b.reshape(4, 1, 1),  # one value per channel, but not as the bias
        lambda x, w, b, r: conv(x, w) + r[:, :1],
        lambda x, w, b, r: conv(x, w) + r.float(),
        lambda x, w, b, r: conv(x, w) + 1,
        lambda x, w, b, r: torch.add(conv(x, w), r, alpha=2),
        lambda x, w, b, r: (y := conv(x, w)) + y,
        lambda x, w, b, r: own.leaky_relu(conv(x, w)),
        lambda x, w, b, r: conv(x, w).float().relu(),
    ],
)
def test_anything_else_stays(function: Callable[..., Any]) -> None:
    kernels, others = taken(function, *(half(*s) for s in CONV))
    assert len(kernels) == 1
    assert others


def test_of_two_convolutions_one_takes_the_other_as_residual() -> None:
    def function(x: torch.Tensor, v: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return (conv(x, v) + conv(x, w)).relu()

    kernels, others = taken(function, half(1, 4, 6, 5), half(4, 4, 3, 3), half(4, 4, 3, 3))
    assert sorted(kernels) == ["tilewise.conv", "tilewise.conv_ended"]
    assert not others


@pytest.mark.long
@pytest.mark.parametrize("name", ["relu", "silu"])
def test_training_keeps_the_values_that_gradients_need(name: str) -> None:
    """ReLU's gradient is taken of its result, the others' of the value before."""

    def function(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return ACTIVATIONS[name](conv(x, w, b))

    compiled_function, graphs = compiled(function)
    with serve("forward"):
        assert_same(compiled_function, function, half(1, 4, 6, 5), half(4, 4, 3, 3), half(4))
    assert any(n in ("aten.exp", "aten.erf", "aten.relu") for n in graphs.fused()) is (name != "relu")

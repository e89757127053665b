"""Functions with bias, residual and activation give PyTorch's results and gradients, eager and compiled."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch.nn import functional as own

import tilewise.torch as ours
from kernels.dispatchers import dispatcher_of
from kernels.test_epilogue import activated
from tilewise.errors import ProblemError
from tilewise.kernels import ACTIVATIONS
from tilewise.kernels.triton.programs import interpreted
from tilewise.torch import _ended as ended
from tilewise.torch import _operators as operators
from torch_functions.compare import assert_same, close, half
from torch_functions.test_compiled import Graphs
from torch_functions.test_eager import last, serve

pytestmark = pytest.mark.skipif(not interpreted(), reason="a GPU is there: what runs on it is tested on it")

BACKWARD = ("bwd_data", "bwd_weight")


@pytest.fixture(autouse=True)
def _fresh_traces() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def conv_case(activation: str | None, residual: bool) -> tuple[Any, Any, list[torch.Tensor]]:
    """Return our function, PyTorch's, and operands: small values, where activations bend."""

    def mine(x: Any, w: Any, b: Any, *r: Any) -> torch.Tensor:
        return ours.conv2d(x, w, b, padding=1, residual=r[0] if r else None, activation=activation)

    def theirs(x: Any, w: Any, b: Any, *r: Any) -> torch.Tensor:
        return activated(sum(r, own.conv2d(x, w, b, padding=1)), activation or "")

    operands = [last(1, 4, 4, 5), last(6, 4, 3, 3) / 4, half(6), *([last(1, 6, 4, 5)] if residual else [])]
    return mine, theirs, operands


def product_case(activation: str | None, residual: bool) -> tuple[Any, Any, list[torch.Tensor]]:
    def mine(x: Any, w: Any, b: Any, *r: Any) -> torch.Tensor:
        return ours.linear(x, w, b, residual=r[0] if r else None, activation=activation)

    def theirs(x: Any, w: Any, b: Any, *r: Any) -> torch.Tensor:
        return activated(sum(r, own.linear(x, w, b)), activation or "")

    return mine, theirs, [half(2, 3, 8), half(4, 8) / 4, half(4), *([half(2, 3, 4)] if residual else [])]


CASES: dict[str, tuple[str, Callable[[str | None, bool], tuple[Any, Any, list[torch.Tensor]]]]] = {
    "conv2d": ("grouped_conv", conv_case),
    "linear": ("gemm", product_case),
}


@pytest.mark.long
@pytest.mark.parametrize("left", [False, True], ids=["kernels", "pytorch"])
@pytest.mark.parametrize("residual", [False, True])
@pytest.mark.parametrize("activation", [None, *ACTIVATIONS])
@pytest.mark.parametrize("name", CASES)
def test_results_and_gradients_are_pytorch_s(name: str, activation: str | None, residual: bool, left: bool) -> None:
    op, make = CASES[name]
    mine, theirs, operands = make(activation, residual)
    with serve(op, *(("forward", *BACKWARD) if left and op == "grouped_conv" else ())):
        for _ in range(2):  # the first call, and the short way of a known one
            assert_same(mine, theirs, *operands)
        with torch.no_grad():
            for _ in range(2):
                y, right = mine(*operands), theirs(*operands)
                close(y, right)
                assert y.stride() == right.stride()


@pytest.mark.long
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("op", CASES)
def test_the_operators_themselves_have_gradients(op: str, activation: str) -> None:
    """They compute the value before the activation again, which the functions avoid."""
    target, make = CASES[op]
    _, theirs, operands = make(activation, True)

    def mine(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor, r: torch.Tensor) -> torch.Tensor:
        if target == "gemm":
            return ended.mm_ended(x.reshape(6, 8), w.t(), b, r.reshape(6, 4), activation).reshape(2, 3, 4)
        return ended.conv_ended(x, w, b, r, activation, [1, 1], [1, 1], [1, 1], 1)

    with serve(target):
        assert_same(mine, theirs, *operands)


@pytest.mark.long
@pytest.mark.parametrize("activation", [None, "relu", "silu"])
def test_gradients_of_gradients(activation: str | None) -> None:
    mine, theirs, operands = conv_case(activation, True)

    def penalty(f: Callable[..., torch.Tensor]) -> tuple[torch.Tensor, ...]:
        given = [t.clone().requires_grad_() for t in operands]
        first = torch.autograd.grad(f(*given).square().sum(), given, create_graph=True)
        second: tuple[torch.Tensor, ...] = torch.autograd.grad(sum(g.square().sum() for g in first), given)
        return second

    with serve("grouped_conv"):
        for a, b in zip(penalty(mine), penalty(theirs), strict=True):
            close(a, b)


def test_a_gradient_of_the_residual_or_bias_alone() -> None:
    with serve("grouped_conv"):
        for _ in range(2):
            x, w, bias, residual = last(1, 4, 5, 5), last(4, 4, 3, 3), half(4), last(1, 4, 3, 3)
            for wanted in (bias, residual):
                wanted.requires_grad_()
                ours.conv2d(x, w, bias, residual=residual).float().sum().backward()
            assert torch.equal(residual.grad, torch.ones_like(residual))
            assert torch.equal(bias.grad, torch.full_like(bias, 18))


@pytest.mark.parametrize(("change", "shape"), [
    ("broadcasts", (1, 4, 1, 1)), ("is fp32", (1, 4, 3, 3)), ("is not channels-last", (1, 4, 3, 3)),
])  # fmt: skip
def test_other_residuals_are_added_as_pytorch_adds_them(change: str, shape: tuple[int, ...]) -> None:
    residual = torch.randn(shape) if "fp32" in change else half(*shape)
    with serve("grouped_conv"), torch.no_grad():
        for _ in range(2):
            x, w = last(1, 4, 5, 5), last(4, 4, 3, 3)
            y = ours.conv2d(x, w, residual=residual, activation="relu")
            right = own.relu(own.conv2d(x, w) + residual)
            assert y.dtype == right.dtype
            close(y.half(), right.half())


@pytest.mark.parametrize("shape", [(4, 5, 5), (1, 4, 5, 5)])
@pytest.mark.parametrize("padding", [1, "same"])
def test_without_a_batch_and_with_uneven_padding(shape: tuple[int, ...], padding: Any) -> None:
    x, w, bias = half(*shape), half(4, 4, 2, 2), half(4)
    with serve("grouped_conv"):
        plain = own.conv2d(x, w, bias, padding=padding)
        residual = torch.randn_like(plain)
        y = ours.conv2d(x, w, bias, padding=padding, residual=residual, activation="relu")
    close(y, own.relu(plain + residual))


def test_under_autocast_operands_are_cast() -> None:
    x, w, bias = torch.randn(2, 3, 8), torch.randn(4, 8), torch.randn(4)
    residual = half(2, 3, 4)
    with serve("gemm"), torch.autocast("cpu", torch.float16):
        y = ours.linear(x, w, bias, residual=residual, activation="relu")
        close(y, own.relu(own.linear(x, w, bias) + residual))


def test_an_unknown_activation_is_refused() -> None:
    with pytest.raises(ProblemError, match=r"activation: must be one of relu, .*, got 'swish'"):
        ours.matmul(half(2, 2), half(2, 2), activation="swish")


def test_types_without_kernels_are_pytorch_s() -> None:
    x, w, residual = torch.randn(1, 2, 4, 4), torch.randn(3, 2, 3, 3), torch.randn(1, 3, 2, 2)
    y = ours.conv2d(x, w, residual=residual, activation="hardswish")
    assert torch.equal(y, own.hardswish(own.conv2d(x, w) + residual))


@pytest.mark.parametrize("name", CASES)
def test_known_calls_run_their_kernel_without_the_operator(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    op, make = CASES[name]
    mine, theirs, operands = make("silu", True)
    with serve(op), torch.no_grad():
        mine(*operands)
        for operator in ("conv_ended", "mm_ended"):
            monkeypatch.setattr(ended, operator, None)
        for operator in ("conv", "mm"):
            monkeypatch.setattr(operators, operator, None)
        close(mine(*operands), theirs(*operands))


@pytest.mark.long
@pytest.mark.parametrize(("left", "names"), [
    (False, {"tilewise.conv_ended": 1}), (True, {"aten.convolution": 1}),
])  # fmt: skip
def test_compiled_graphs_hold_the_operator_or_pytorch_s_own_calls(left: bool, names: dict[str, int]) -> None:
    mine, theirs, operands = conv_case("relu", True)
    graphs = Graphs()
    with serve("grouped_conv", *(("forward",) if left else ())):
        assert_same(torch.compile(mine, fullgraph=True, dynamic=False, backend=graphs.backend), theirs, *operands)
    assert graphs.forward == names
    assert graphs.backward == {"tilewise.conv_bwd_data": 1, "tilewise.conv_bwd_weight": 1}


def test_compiled_training_leaves_other_activations_to_pytorch() -> None:
    mine, theirs, operands = product_case("gelu", False)
    graphs = Graphs()
    with serve("gemm"):
        assert_same(torch.compile(mine, fullgraph=True, backend=graphs.backend), theirs, *operands)
    assert graphs.forward == {"tilewise.mm_ended": 1}


def test_a_dispatcher_without_a_kernel_is_replaced_by_pytorch(caplog: pytest.LogCaptureFixture) -> None:
    mine, theirs, operands = conv_case("relu", True)
    broken = dispatcher_of("grouped_conv", "forward", "16x16x24_taps_w1_s2_g1_k1")
    with ours.use(broken), torch.no_grad():
        close(mine(*operands), theirs(*operands))
    assert "PyTorch's own operator is used where none can run" in caplog.text

"""A step of training is seen whole: calls of layers, normalisations that kernels can compute, and other functions."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from tilewise.torch._training_step import Rest, observe_step

PIXELS = 2 * 3 * 3
CHANNELS = 8
WHOLE = PIXELS * CHANNELS * 4  # bytes of the tensors between

Forward = Callable[["Network", torch.Tensor], torch.Tensor]


class Network(nn.Module):  # type: ignore[misc] # torch has no types here
    """A convolution, then a function of its result."""

    def __init__(self, after: Forward, norm: nn.Module | None = None) -> None:
        super().__init__()
        self.conv, self.norm, self.last = nn.Conv2d(4, CHANNELS, 1), norm or nn.BatchNorm2d(CHANNELS), nn.Linear(8, 2)
        self.after = after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self, self.conv(x))


def example() -> torch.Tensor:
    return torch.randn(2, 4, 3, 3).to(memory_format=torch.channels_last)


def rest_of(after: Forward, norm: nn.Module | None = None) -> Rest:
    _, rest = observe_step(Network(after, norm), (example(),))
    return rest


def test_functions_are_those_that_write() -> None:
    def after(self: Network, y: torch.Tensor) -> torch.Tensor:
        y = torch.relu_(y + y)
        y = y.mean((2, 3)).view(2, 8).t().t().argmax(1).float() + torch.empty(2)  # an index is no result to train
        return y

    assert rest_of(after) == Rest(functions=5, written_bytes=2 * WHOLE + 2 * 8 * 4 + 2 * 2 * 4)


def test_layers_are_no_functions() -> None:
    calls, rest = observe_step(Network(lambda self, y: self.last(y.permute(0, 2, 3, 1))), (example(),))
    assert [len(of_layer) for of_layer in calls.values()] == [1, 1]
    assert rest == Rest()


def test_operands_are_looked_at_aside() -> None:
    def after(self: Network, y: torch.Tensor) -> torch.Tensor:
        return self.last(y.mean((2, 3)))

    with torch.autocast("cpu", torch.float16):
        assert rest_of(after).functions == 6  # casts of the input, both filters and both biases, and the mean


class TestNormalisations:
    def test_of_kernels_are_known_by_name(self) -> None:
        rest = rest_of(lambda self, y: self.norm(self.norm(y)))
        assert rest == Rest({"norm": [WHOLE, WHOLE]})
        assert rest.with_plain_norms == Rest(plain_norms=2, normalised_bytes=2 * WHOLE)

    def test_may_be_called_by_keyword(self) -> None:
        assert rest_of(lambda self, y: self.norm(input=y)) == Rest({"norm": [WHOLE]})

    @pytest.mark.parametrize(
        "norm", [nn.BatchNorm2d(8, affine=False), nn.BatchNorm2d(8, momentum=None), nn.BatchNorm2d(8).double()]
    )
    def test_others_are_plain(self, norm: nn.Module) -> None:
        wide = next(norm.buffers()).element_size() // 4
        rest = rest_of(lambda self, y: self.norm(y.double() if wide == 2 else y), norm)
        assert rest[:3] == ({}, 1, wide * WHOLE)

    def test_one_called_in_another_layout_is_plain(self) -> None:
        rest = rest_of(lambda self, y: self.norm(self.norm(y).contiguous()))
        assert rest == Rest(plain_norms=2, normalised_bytes=2 * WHOLE, functions=1, written_bytes=WHOLE)

    def test_frozen_ones_are_functions(self) -> None:
        assert rest_of(lambda self, y: self.norm(y), nn.BatchNorm2d(8).eval())[1:4] == (0, 0, 1)


@torch.library.custom_op("tilewise_test::one", mutates_args=())  # type: ignore[untyped-decorator]
def one() -> torch.Tensor:
    """Return a number, as an operator without arguments."""
    return torch.ones(())


@one.register_fake  # type: ignore[untyped-decorator]
def _() -> torch.Tensor:
    return torch.ones(())


@pytest.mark.parametrize(
    "after",
    [
        lambda self, y: torch.cond(y.sum() > 0, lambda t: t.sin(), lambda t: t.cos(), (y,)),
        lambda self, y: y * one(),
        lambda self, y: torch.sparse.mm(torch.eye(3).to_sparse() * 2.0, y[0, 1]),
        lambda self, y: y * y.sum().item(),
    ],
)
def test_whatever_a_network_calls_is_observed(after: Forward) -> None:
    calls, rest = observe_step(Network(after), (example(),))
    assert len(calls["conv"]) == 1
    assert rest.norms == {}


def test_compiled_parts_are_compiled_afterwards() -> None:
    graphs: list[object] = []

    def counting(graph: torch.fx.GraphModule, inputs: object) -> Callable[..., object]:
        graphs.append(graph)
        return graph.forward  # type: ignore[no-any-return]

    compiled = torch.compile(nn.Sequential(nn.ReLU()), backend=counting)
    network = Network(lambda self, y: compiled(y))
    observe_step(network, (example(),))
    before = len(graphs)
    network(example())
    assert len(graphs) > before

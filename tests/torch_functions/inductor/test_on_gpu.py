"""The adapter on real graphs of Inductor for a GPU: results, gradients, memory formats, CUDA graphs.

``PYTHONPATH=src:tests python3 -m pytest -m gpu tests/torch_functions/inductor``
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor.utils import fresh_cache

import tilewise.torch as ours
from tilewise.dispatch import Comparison, Dispatcher
from tilewise.kernels import EMPTY_KIND, EpilogueKind
from tilewise.ops import GroupedConvProblem, Target
from tilewise.torch import inductor

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("winning")]


class Winning(Dispatcher):
    """A dispatcher that always expects its pool's first kernel to beat PyTorch's call."""

    def compare_with_pytorch(self, problem: Any, kind: EpilogueKind = EMPTY_KIND) -> Comparison:
        return Comparison(self.rank(problem)[0], 1.0, 2.0, False)


@pytest.fixture
def winning(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TILEWISE_MEASURE", "off")
    monkeypatch.setenv("TILEWISE_VENDOR", "off")
    torch._dynamo.reset()
    targets = [Target("grouped_conv", v, d, "sm90") for v in GroupedConvProblem.variants for d in ("bf16", "fp16")]
    targets += [Target("gemm", "universal", d, "sm90") for d in ("bf16", "fp16")]
    with ours.use(*map(Winning.from_pool, targets)), fresh_cache():  # a graph from the cache is seen by no pass
        yield
    torch._dynamo.reset()


class Net(nn.Module):  # type: ignore[misc] # torch has no types here
    """A residual block, a depthwise convolution and a perceptron, with every activation that kernels compute."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 32, 7, 2, 3)
        self.depth = nn.Conv2d(32, 32, 3, padding=1, groups=32)
        self.point = nn.Conv2d(32, 32, 1)
        self.wide = nn.Conv2d(32, 64, 3, 2, 1, bias=False)
        self.norm = nn.BatchNorm2d(64)
        self.up, self.down, self.head = nn.Linear(64, 256), nn.Linear(256, 64), nn.Linear(64, 16, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.silu(self.stem(x))
        x = (self.point(nn.functional.hardswish(self.depth(x))) + x).relu()
        tokens = self.norm(self.wide(x)).relu().flatten(2).transpose(1, 2)
        tokens = tokens + self.down(nn.functional.gelu(self.up(tokens)))
        y: torch.Tensor = self.head(nn.functional.gelu(tokens.mean(1), approximate="tanh"))
        return y


def networks(dtype: torch.dtype, last: bool) -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """Return a network, the same in fp32, and an input."""
    torch.manual_seed(1)
    net, exact = Net().cuda().to(dtype), Net().cuda()
    exact.load_state_dict(net.state_dict())
    layout = torch.channels_last if last else torch.contiguous_format
    x = torch.randn(4, 3, 64, 64, device="cuda").to(dtype).to(memory_format=layout)
    return net.to(memory_format=layout), exact, x


def assert_near(found: torch.Tensor, exact: torch.Tensor, share: float) -> None:
    assert error(found, exact) < share


def error(found: torch.Tensor, exact: torch.Tensor) -> float:
    return float((found.float() - exact).norm() / exact.norm())


def graph_pass(options: dict[str, object]) -> inductor.GraphPass:
    (found,) = (value for value in options.values() if isinstance(value, inductor.GraphPass))
    return found


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("mode", [None, "reduce-overhead", "max-autotune-no-cudagraphs"])
def test_inference(mode: str | None, last: bool, dtype: torch.dtype) -> None:
    net, exact, x = networks(dtype, last)
    net.eval(), exact.eval()
    options = inductor.options(mode)
    compiled = torch.compile(net, fullgraph=True, options=options)
    with torch.no_grad():
        for _ in range(3):
            y = compiled(x)
        assert_near(y, exact(x.float()), 0.03)
        assert y.stride() == net(x).stride()
    assert graph_pass(options).seen == graph_pass(options).replaced == 7


@pytest.mark.parametrize("last", [True, False])
@pytest.mark.parametrize("mode", [None, "reduce-overhead"])
def test_training(mode: str | None, last: bool) -> None:
    net, exact, x = networks(torch.bfloat16, last)
    options = inductor.options(mode)
    compiled = torch.compile(net, fullgraph=True, options=options)
    for _ in range(3):
        net.zero_grad()
        compiled(x).float().square().mean().backward()
    exact(x.float()).square().mean().backward()
    found = [p.grad for p in net.parameters()]
    net.zero_grad()
    net(x).float().square().mean().backward()
    for mine, plain, right in zip(found, net.parameters(), exact.parameters(), strict=True):
        assert error(mine, right.grad) < 1.5 * error(plain.grad, right.grad) + 0.01  # bf16 costs PyTorch as much
    assert graph_pass(options).replaced == graph_pass(options).seen > 14


def test_operands_are_stored_as_kernels_read_them() -> None:
    before, after = nn.Conv2d(8, 32, 3, padding=1, bias=False), nn.Conv2d(32, 64, 1, bias=False)
    net = nn.Sequential(before, nn.BatchNorm2d(32), nn.ReLU(), nn.MaxPool2d(3, 2, 1), after).eval()
    net = net.cuda().bfloat16().to(memory_format=torch.channels_last)
    x = torch.randn(4, 8, 64, 64, device="cuda").bfloat16().to(memory_format=torch.channels_last)
    options = inductor.options()
    compiled = torch.compile(net, fullgraph=True, options=options)
    with torch.no_grad():
        compiled(x)
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
            compiled(x)
    assert graph_pass(options).replaced == 2
    assert not [event.name for event in profile.events() if "copy" in event.name]


def test_under_autocast() -> None:
    _, exact, x = networks(torch.bfloat16, last=True)
    exact.eval()
    options = inductor.options()
    compiled = torch.compile(exact, fullgraph=True, options=options)
    with torch.no_grad():
        right = exact(x.float())
        with torch.autocast("cuda", torch.bfloat16):
            assert_near(compiled(x.float()), right, 0.03)
    assert graph_pass(options).replaced == 7


def test_plain_nodes_are_left_to_the_vendor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Winning, "compare_with_pytorch", Dispatcher.compare_with_pytorch)  # there is no model
    net, exact, x = networks(torch.bfloat16, last=True)
    options = inductor.options()
    with torch.no_grad():
        assert_near(torch.compile(net.eval(), options=options)(x), exact.eval()(x.float()), 0.03)
    assert (graph_pass(options).replaced, graph_pass(options).seen) == (0, 7)

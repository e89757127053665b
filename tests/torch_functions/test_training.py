"""Optimised networks train as their code says: frozen parts, random branches, side effects."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

import tilewise.torch as ours
from tilewise.kernels.triton.programs import interpreted
from tilewise.torch import HostCost
from tilewise.torch.decision import _host_costs as host_costs
from tilewise.torch.decision import _judge as judge
from tilewise.torch.norm import BatchNorm2d
from torch_functions.compare import close, half
from torch_functions.predicting import predicting

pytestmark = pytest.mark.skipif(not interpreted(), reason="a GPU is there: what runs on it is tested on it")


class Block(nn.Module):  # type: ignore[misc] # torch has no types here
    """A frozen convolution, one that learns, and its normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen, self.conv, self.norm = nn.Conv2d(8, 8, 1), nn.Conv2d(8, 8, 3, padding=1), nn.BatchNorm2d(8)
        self.context = SimpleNamespace(aux=None, scale=1.0)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.norm(self.conv(self.frozen(x))))


class Frozen(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            x = self.frozen(x)
        return torch.relu(self.norm(self.conv(x)))


class Auxiliary(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        self.context.aux = y.float().mean()
        return y


class Scheduled(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = super().forward(x)
        return y if self.context.scale == 1.0 else y * self.context.scale


def drawing(draw: Callable[[], float]) -> type[Block]:
    class Random(Block):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return super().forward(x) if draw() >= 0 else x

    return Random


@pytest.fixture(autouse=True)
def _served(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(judge, "norm_cost", lambda *args: HostCost(0.0, 0.0, 0.0, 0.0))
    with ours.use(*predicting()):
        yield


@pytest.fixture
def x() -> torch.Tensor:
    return half(1, 8, 4, 4).to(memory_format=torch.channels_last)


def test_eager_steps_keep_the_networks_code(x: torch.Tensor) -> None:
    model = Block().half().train()
    optimised, report = ours.optimize(model, x)
    assert report.norms == {"norm": ()}
    assert "norm: kernels compute it\n" in str(report)
    assert type(optimised.norm) is BatchNorm2d
    assert "forward" not in vars(optimised)
    close(optimised(x), model(x))
    assert ours.optimize(model, x, fuse=False).report.norms == {}


@pytest.mark.parametrize("launch", ["eager", "graph"])
class TestCode:
    def test_without_gradients_stays_so(self, launch: judge.Launch, x: torch.Tensor) -> None:
        optimised = ours.optimize(Frozen().half().train(), x, launch=launch).model
        optimised(x).sum().backward()
        assert optimised.frozen.weight.grad is None
        assert optimised.conv.weight.grad is not None

    def test_keeps_values_in_objects(self, launch: judge.Launch, x: torch.Tensor) -> None:
        optimised = ours.optimize(Auxiliary().half().train(), x, launch=launch).model
        y = optimised(x)
        assert float(optimised.context.aux) == pytest.approx(float(y.float().mean()))

    def test_reads_values_of_objects(self, launch: judge.Launch, x: torch.Tensor) -> None:
        optimised, report = ours.optimize(Scheduled().half().train(), x, launch=launch)
        assert [*report.norms] == ["norm"]
        optimised.context.scale = 0.0
        assert not optimised(x).any()

    @pytest.mark.parametrize(
        "draw", [random.random, np.random.random, lambda: float(torch.rand(()))], ids=["Python", "NumPy", "PyTorch"]
    )
    def test_draws_random_numbers_in_each_step(
        self, draw: Callable[[], float], launch: judge.Launch, x: torch.Tensor
    ) -> None:
        calls = 0

        def counted() -> float:
            nonlocal calls
            calls += 1
            return draw()

        model = drawing(counted)().half().train()
        states = random.getstate(), torch.get_rng_state()
        optimised, report = ours.optimize(model, x, launch=launch)
        assert random.getstate() == states[0]
        assert torch.equal(torch.get_rng_state(), states[1])
        assert [*report.norms] == ([] if launch == "graph" else ["norm"])
        calls = 0
        optimised(x)
        assert calls == 1


def test_a_cost_is_measured_without_gradients_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_known": {}, "_BATCHES": 1, "_CALLS": 1, "_SIZE": 16}.items():
        monkeypatch.setattr(host_costs, name, value)
    with torch.no_grad():
        assert host_costs.norm_cost(torch.float16, torch.device("cpu")).kernel_ms > 0


def test_a_reason_is_no_decision(x: torch.Tensor) -> None:
    report = ours.optimize(Block().half().train(), x).report
    assert replace(report, why_not_folded="<Thing object at 0x7f00>").digest == report.digest
    assert replace(report, norms={}).digest != report.digest

"""Tests do not share dispatchers."""

from __future__ import annotations

import pytest
import torch

from tilewise.torch import _optimize as optimizing
from tilewise.torch import _serving as serving
from tilewise.torch.decision import HostCost
from tilewise.torch.decision import _judge as judge
from tilewise.torch.eager import _known as eager


@pytest.fixture(autouse=True)
def _from_a_fresh_start(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(serving, "_installed", {})
    monkeypatch.setattr(serving, "_from_production", {})
    monkeypatch.setattr(serving, "_awaited", {})
    monkeypatch.setattr(serving, "_warnings", set())
    monkeypatch.setattr(eager, "_calls", {})
    # Under Triton's interpreter a kernel costs the host milliseconds, and nothing would ever be replaced.
    monkeypatch.setattr(judge, "host_cost", lambda *args: HostCost(0.0, 0.0, 0.0, 0.0))
    monkeypatch.setattr(judge, "norm_cost", lambda *args: HostCost(1e3, 0.0, 0.0, 0.0))
    monkeypatch.setattr(optimizing, "host_ms_of_pass", lambda *args: 0.0)

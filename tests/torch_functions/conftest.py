"""No test finds what another let serve."""

from __future__ import annotations

import pytest
import torch

from tilewise.torch import serving


@pytest.fixture(autouse=True)
def _from_a_fresh_start(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(serving, "_used", {})
    monkeypatch.setattr(serving, "_loaded", {})
    monkeypatch.setattr(serving, "_told", set())

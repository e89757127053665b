"""The registry survives kills anywhere; ``python -m benchmarks.robustness.kill_registry`` tries many more points."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from registry.killing import Campaign, points

pytestmark = pytest.mark.long


def test_killed_at_a_few_points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
    campaign = Campaign(tmp_path)
    steps = campaign.undisturbed()
    for i, at in enumerate(points(steps, 3, seed=1)):
        campaign.kill(seed=1 + i, at=at)

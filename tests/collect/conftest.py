"""Fixtures: a small plan for the fake engine, and its log."""

from __future__ import annotations

from pathlib import Path

import pytest

from collect.fake import LOG
from tilewise.arch import load_arch
from tilewise.collect import Item, Plan, Timing
from tilewise.kernels import Pool, load_pool
from tilewise.ops import GroupedConvProblem, Target


@pytest.fixture
def plan() -> Plan:
    """Plan of five problems x six kernels, with a short kernel timeout."""
    target = Target.parse("grouped_conv_forward_bf16_sm90")
    items = tuple(Item(GroupedConvProblem(n, 8, 8, 1, 8, 8, 3, 3), "test") for n in range(1, 6))
    pool = Pool(target.op, target.variant, target.dtype, load_pool(target).kernels[:6])
    return Plan(target, load_arch("sm90"), pool, items, Timing(kernel_timeout_s=1.5), "run-1")


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Path of the file in which the fake engine lists each measured pair."""
    path = tmp_path / "measured.log"
    monkeypatch.setenv(LOG, str(path))
    return path

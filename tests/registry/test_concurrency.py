"""Promotions at the same time, by real processes on a real server: one wins, the others judge again."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from registry.rush import check, rush
from registry.server import mlflow_server
from synthetic import CONV
from tilewise.registry import history, tracking


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """SQLite behind it; TILEWISE_TEST_MLFLOW_URI names another server to test, with an empty registry or not."""
    with mlflow_server(tmp_path_factory.mktemp("server")) as uri:
        yield uri


def test_no_update_is_lost(server: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(p for p in sys.path if p))
    with tracking.session(server):
        before = len(history.entries(CONV))
        told = rush(server, tmp_path, processes=4, each=2)
        counts = check(told, before)
    assert counts["promoted"] + counts["refused"] == 8
    assert counts["promoted"] >= 6

"""Promotions at the same time, by real processes on a real server: one wins, the others judge again."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Barrier

import pytest

from registry.rush import check, rush
from registry.server import mlflow_server
from synthetic import CONV
from tilewise.registry import history, tracking, versions


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


def test_aliases_and_tags_that_many_set_first(server: str, tmp_path: Path) -> None:
    def at_once(write: Callable[[int], object]) -> None:
        start = Barrier(4)

        def later(number: int) -> None:
            start.wait()
            write(number)

        with ThreadPoolExecutor(4) as pool:
            list(pool.map(later, (1, 2, 3, 4)))

    with tracking.session(server):
        for name in (f"{tmp_path.name}_{i}" for i in range(4)):
            for _ in range(4):
                versions.create(name, f"tilewise:/{name}", None, None, {}, "")
            at_once(lambda number, name=name: versions.point(name, "first", number))  # type: ignore[misc]
            assert versions.aliases(name)["first"] in (1, 2, 3, 4)
            at_once(lambda number, name=name: versions.tag(name, 1, "first", str(number)))  # type: ignore[misc]

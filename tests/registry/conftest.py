from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from store import fresh_store
from tilewise.registry import registry_session
from tilewise.registry.promotion import _promote as promote


@pytest.fixture(autouse=True)
def _no_plots(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes longer than all else that a promotion does; one test puts it back."""
    monkeypatch.setattr(promote, "log_plots", lambda *_: None)


@pytest.fixture
def registry(tmp_path: Path) -> Iterator[str]:
    """Return an empty registry on SQLite, connected; its URI."""
    with registry_session(fresh_store(tmp_path / "store")) as uri:
        yield uri

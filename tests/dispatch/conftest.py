from __future__ import annotations

from pathlib import Path

import pytest

from store import fresh_store


@pytest.fixture
def uri(tmp_path: Path) -> str:
    """Return the URI of an empty registry on SQLite."""
    return fresh_store(tmp_path / "store")

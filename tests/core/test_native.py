"""The choice of the core: compiled where it was built, otherwise NumPy with a warning."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tilewise.core import _native, compiled_core
from tilewise.errors import ConfigError


@pytest.fixture(autouse=True)
def _not_built(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    def fail(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.delenv("TILEWISE_CORE", raising=False)
    monkeypatch.setattr(_native, "import_module", fail)
    _native._warn_once.cache_clear()
    yield
    _native._warn_once.cache_clear()


def test_without_a_compiled_core_a_warning_says_once_that_numpy_ranks(caplog: pytest.LogCaptureFixture) -> None:
    assert [compiled_core(), compiled_core()] == [None, None]
    (warning,) = caplog.messages
    assert warning.startswith("the native core was not built (No module named 'tilewise.core._core'), so NumPy ranks")


def test_who_chooses_numpy_is_not_warned(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setenv("TILEWISE_CORE", "numpy")
    assert compiled_core() is None
    assert caplog.messages == []


def test_who_requires_it_gets_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILEWISE_CORE", "c")
    with pytest.raises(ConfigError, match="TILEWISE_CORE=c, but the core was not built"):
        compiled_core()

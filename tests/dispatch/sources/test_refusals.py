"""A dispatcher starts while the registry refuses the version in production: a good copy serves, no refused one does.

The ways into such a state are those of docs/gate-attacks.md.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest

from registry.promotion.ways import BAD, GOOD, REASON, SMALL, by_hand
from small_model import table, write_model
from synthetic import CONV
from tilewise.dispatch.sources import _model_source, fetch_model
from tilewise.dispatch.sources._model_source import last_good_copy
from tilewise.errors import ArtefactError, RegistryUnavailableError
from tilewise.registry import Version, registry_session, roll_back
from tilewise.registry.promotion import Override, PromotionRules, promote
from tilewise.registry.promotion import _promote as promotion

pytestmark = pytest.mark.long

Go = Callable[[str], Version]


@pytest.fixture
def registry(uri: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(promotion, "log_plots", lambda *_: None)  # drawing takes longer than all else
    with registry_session(uri):
        yield uri


@pytest.fixture
def go(registry: str, tmp_path: Path) -> Go:
    """Return a function that promotes a good model with a note, or one with other settings."""

    def _go(note: str, **model: Any) -> Version:
        folder = write_model(tmp_path / "models" / CONV, **(GOOD | model), note=note)
        return promote(folder, table(), PromotionRules(SMALL, 0.18, None, Override(REASON)), tmp_path / "r").version

    return _go


def note_file(tmp_path: Path) -> Path:
    return next((tmp_path / "tilewise-cache").rglob("production.json"))


def test_the_only_copy_was_rolled_back(go: Go, registry: str, caplog: pytest.LogCaptureFixture) -> None:
    go("first")
    second = go("second")
    assert fetch_model(CONV, uri=registry).version == second.number
    roll_back(CONV, reason="wrong results on depthwise")
    by_hand(second.number)
    with (
        caplog.at_level(logging.WARNING),
        pytest.raises(ArtefactError, match="it was rolled back: wrong results on depthwise; put back a version"),
    ):
        fetch_model(CONV, uri=registry)
    assert f"{CONV} @production: the local copy of version 2 is not used" in caplog.text
    assert last_good_copy(CONV, uri=registry) is None, "nor later, while the registry is away"


def test_the_copy_before_it_serves(go: Go, registry: str, caplog: pytest.LogCaptureFixture) -> None:
    first = go("first")
    fetch_model(CONV, uri=registry)
    second = go("second")
    fetch_model(CONV, uri=registry)
    roll_back(CONV, reason="wrong results on depthwise")
    by_hand(second.number)
    with caplog.at_level(logging.WARNING):
        fetched = fetch_model(CONV, uri=registry)
    assert (fetched.model.content_hash, fetched.from_registry) == (first.content_hash, False)
    assert "using the last good local copy (version 1): " in caplog.text
    copy = last_good_copy(CONV, uri=registry)
    assert copy is not None
    assert copy.version == first.number
    by_hand(first.number)
    roll_back(CONV, second.number, reason="it was another change")
    assert fetch_model(CONV, uri=registry).version == second.number, "a rollback that names it puts it back"


def test_nor_does_a_copy_that_was_rolled_back_before_another_version_is_refused(
    go: Go, registry: str, tmp_path: Path
) -> None:
    go("first")
    second = go("second")
    fetch_model(CONV, uri=registry)
    assert json.loads(note_file(tmp_path).read_text()) == {"content_hash": second.content_hash, "version": 2}
    roll_back(CONV, reason="wrong results on depthwise")
    by_hand(go("third", **BAD).number)
    with pytest.raises(ArtefactError, match="without having passed the gate"):
        fetch_model(CONV, uri=registry)


def test_a_version_that_only_claims_the_content_of_a_good_copy(go: Go, registry: str, tmp_path: Path) -> None:
    """Tags can be edited; that must not take the copy from a dispatcher."""
    first = go("first")
    fetch_model(CONV, uri=registry)
    second = go("second")
    mlflow.MlflowClient().set_model_version_tag(CONV, str(second.number), "content_hash", first.content_hash)
    assert fetch_model(CONV, uri=registry).model.content_hash == first.content_hash
    assert json.loads(note_file(tmp_path).read_text())["content_hash"] == first.content_hash


def test_a_cache_that_cannot_be_written(go: Go, registry: str, monkeypatch: pytest.MonkeyPatch) -> None:
    first = go("first")
    fetch_model(CONV, uri=registry)
    second = go("second")
    fetch_model(CONV, uri=registry)
    roll_back(CONV, reason="wrong results on depthwise")
    by_hand(second.number)

    def full(*_: object) -> None:
        raise OSError("read-only")

    monkeypatch.setattr(_model_source, "write_notes", full)
    assert fetch_model(CONV, uri=registry).model.content_hash == first.content_hash


@pytest.mark.parametrize("served", [1, 2])
def test_the_registry_goes_away_before_it_tells_about_the_copies(
    go: Go, registry: str, monkeypatch: pytest.MonkeyPatch, served: int
) -> None:
    """Then the refused content does not serve, and others as always without a registry: the last one only."""
    go("first")
    fetch_model(CONV, uri=registry)
    second = go("second")
    if served == 2:
        fetch_model(CONV, uri=registry)
    roll_back(CONV, reason="wrong results on depthwise")
    by_hand(second.number)

    def away(*_: object) -> bool:
        raise RegistryUnavailableError("away")

    monkeypatch.setattr(_model_source, "may_replace", away)
    if served == 2:
        with pytest.raises(ArtefactError, match="it was rolled back"):
            fetch_model(CONV, uri=registry)
    else:
        assert fetch_model(CONV, uri=registry).version == 1

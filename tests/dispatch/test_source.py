"""Where a model comes from: the registry while it answers, the last good copy while it does not."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mlflow
import pytest

from small_model import write_model
from synthetic import CONV
from tilewise.dispatch import source
from tilewise.errors import ArtefactError, RegistryUnavailableError, UnknownTargetError
from tilewise.registry import tracking, versions
from tilewise.registry.publish import publish

Put = Callable[..., str]


@pytest.fixture
def put(uri: str, tmp_path: Path) -> Put:
    """Publish a model and put it into production; its content hash."""

    def _put(**model: Any) -> str:
        with tracking.session(uri):
            version = publish(write_model(tmp_path / "models" / CONV, **model))
            versions.set_alias(version, versions.PRODUCTION)
        return version.content_hash

    return _put


@pytest.fixture
def away(tmp_path: Path) -> Callable[[], None]:
    """Take the registry away: its database is no longer one."""

    def _away() -> None:
        (tmp_path / "store" / "mlflow.db").write_bytes(b"x" * 4096)

    return _away


def copies(tmp_path: Path) -> list[Path]:
    return sorted(p.parent for p in (tmp_path / "tilewise-cache").rglob("selftest.json"))


def test_the_model_of_the_alias_is_loaded_and_kept(put: Put, uri: str, tmp_path: Path) -> None:
    content_hash = put()
    fetched = source.fetch(CONV, uri=uri)
    assert (fetched.model.content_hash, fetched.version, fetched.from_registry) == (content_hash, 1, True)
    assert copies(tmp_path) == [fetched.folder]
    assert not [p for p in (tmp_path / "tilewise-cache").rglob(".*")]


def test_a_second_fetch_downloads_nothing(put: Put, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put()
    first = source.fetch(CONV, uri=uri)

    def fail(*_: object) -> None:
        raise AssertionError("downloaded again")

    monkeypatch.setattr(versions, "download", fail)
    assert source.fetch(CONV, uri=uri).folder == first.folder


def test_a_new_production_is_fetched(put: Put, uri: str, tmp_path: Path) -> None:
    put()
    source.fetch(CONV, uri=uri)
    second = put(note="second")
    fetched = source.fetch(CONV, uri=uri)
    assert (fetched.model.content_hash, fetched.version) == (second, 2)
    assert len(copies(tmp_path)) == 2


def test_while_the_registry_is_away_the_last_good_copy_serves(
    put: Put, uri: str, away: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    content_hash = put()
    source.fetch(CONV, uri=uri)
    away()
    with caplog.at_level(logging.WARNING):
        fetched = source.fetch(CONV, uri=uri)
    assert (fetched.model.content_hash, fetched.version, fetched.from_registry) == (content_hash, 1, False)
    assert "using the last good local copy (version 1)" in caplog.text


def test_a_deleted_database_is_a_registry_that_is_away(put: Put, uri: str, tmp_path: Path) -> None:
    content_hash = put()
    source.fetch(CONV, uri=uri)
    (tmp_path / "store" / "mlflow.db").unlink()
    assert source.fetch(CONV, uri=uri).model.content_hash == content_hash


def test_away_and_never_fetched(put: Put, uri: str, away: Callable[[], None]) -> None:
    put()
    away()
    with pytest.raises(RegistryUnavailableError, match=r"cannot be opened .*mlflow\.db"):
        source.fetch(CONV, uri=uri)


def test_another_registrys_copy_does_not_serve(put: Put, uri: str) -> None:
    put()
    source.fetch(CONV, uri=uri)
    with pytest.raises(RegistryUnavailableError, match=r"127\.0\.0\.1:9"):
        source.fetch(CONV, uri="http://127.0.0.1:9")


def test_a_broken_new_production_is_not_used(put: Put, uri: str, tmp_path: Path) -> None:
    first = put()
    source.fetch(CONV, uri=uri)
    put(note="second")
    newest = max((tmp_path / "store").rglob("model_tflops.lgbm.gz"), key=lambda p: p.stat().st_mtime_ns)
    newest.write_bytes(b"broken")
    assert source.fetch(CONV, uri=uri).model.content_hash == first


def test_a_broken_only_production_is_an_error(put: Put, uri: str, tmp_path: Path) -> None:
    put()
    for file in (tmp_path / "store").rglob("model_tflops.lgbm.gz"):
        file.write_bytes(b"broken")
    with pytest.raises(ArtefactError, match=r"model_tflops\.lgbm\.gz"):
        source.fetch(CONV, uri=uri)
    assert copies(tmp_path) == []


def test_a_damaged_copy_is_fetched_again(put: Put, uri: str, away: Callable[[], None]) -> None:
    put()
    file = source.fetch(CONV, uri=uri).folder / "pool.json"
    file.write_text(file.read_text().replace("taps", "flat"))
    assert source.fetch(CONV, uri=uri).from_registry
    away()
    assert not source.fetch(CONV, uri=uri).from_registry  # the mended copy


@pytest.mark.parametrize("content", ["", "{", "[]", json.dumps({"content_hash": "../../x", "version": 1})])
def test_a_damaged_note_of_the_alias_is_no_copy(
    put: Put, uri: str, away: Callable[[], None], tmp_path: Path, content: str
) -> None:
    put()
    note = source.fetch(CONV, uri=uri).folder.parent / "production.json"
    assert note.is_file()
    note.write_text(content)
    away()
    with pytest.raises(RegistryUnavailableError):
        source.fetch(CONV, uri=uri)


def test_a_cache_that_cannot_be_written_costs_only_the_copy(
    put: Put, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content_hash = put()
    (tmp_path / "file").touch()
    monkeypatch.setenv("TILEWISE_CACHE", str(tmp_path / "file" / "below"))
    assert source.fetch(CONV, uri=uri).model.content_hash == content_hash


class TestUnknown:
    def test_no_such_alias(self, put: Put, uri: str) -> None:
        put()
        with pytest.raises(
            UnknownTargetError, match=r"no version with alias 'previous' \(it has candidate, production\)"
        ):
            source.fetch(CONV, "previous", uri=uri)

    def test_no_such_target_lists_those_known(self, put: Put, uri: str) -> None:
        put()
        with pytest.raises(UnknownTargetError, match=f"known targets are {CONV}"):
            source.fetch("gemm_universal_fp8_sm90", uri=uri)


def test_the_applications_mlflow_is_left_as_it_was(put: Put, uri: str) -> None:
    put()
    before = mlflow.get_tracking_uri()
    source.fetch(CONV, uri=uri)
    assert mlflow.get_tracking_uri() == before

"""Models come from the registry, or from the last good copy while the registry is unavailable."""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mlflow
import pytest

from small_model import write_model
from store import fresh_store
from synthetic import CONV
from tilewise.dispatch.sources import _model_source, fetch_model
from tilewise.dispatch.sources._deadline import call_within
from tilewise.errors import ArtefactError, RegistryUnavailableError, UnknownTargetError
from tilewise.registry import PRODUCTION, find_by_alias, registry_session, set_alias
from tilewise.registry.promotion import publish

Put = Callable[..., str]


@pytest.fixture
def put(uri: str, tmp_path: Path) -> Put:
    """Return a function that publishes a model, puts it into production, and returns its content hash."""

    def _put(**model: Any) -> str:
        with registry_session(uri):
            version = publish(write_model(tmp_path / "models" / CONV, **model))
            set_alias(version, PRODUCTION)
        return version.content_hash

    return _put


@pytest.fixture
def away(tmp_path: Path) -> Callable[[], None]:
    """Return a function that makes the registry unavailable by damaging its database."""

    def _away() -> None:
        (tmp_path / "store" / "mlflow.db").write_bytes(b"x" * 4096)

    return _away


def copies(tmp_path: Path) -> list[Path]:
    return sorted(p.parent for p in (tmp_path / "tilewise-cache").rglob("selftest.json"))


@pytest.mark.long
def test_the_model_of_the_alias_is_loaded_and_kept(put: Put, uri: str, tmp_path: Path) -> None:
    content_hash = put()
    fetched = fetch_model(CONV, uri=uri)
    assert (fetched.model.content_hash, fetched.version, fetched.from_registry) == (content_hash, 1, True)
    assert copies(tmp_path) == [fetched.folder]
    assert not [p for p in (tmp_path / "tilewise-cache").rglob(".*")]


@pytest.mark.long
def test_a_second_fetch_downloads_nothing(put: Put, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
    put()
    first = fetch_model(CONV, uri=uri)

    def fail(*_: object) -> None:
        raise AssertionError("downloaded again")

    monkeypatch.setattr(_model_source, "download_version", fail)
    assert fetch_model(CONV, uri=uri).folder == first.folder


@pytest.mark.long
def test_a_new_production_is_fetched(put: Put, uri: str, tmp_path: Path) -> None:
    put()
    fetch_model(CONV, uri=uri)
    second = put(note="second")
    fetched = fetch_model(CONV, uri=uri)
    assert (fetched.model.content_hash, fetched.version) == (second, 2)
    assert len(copies(tmp_path)) == 2


def test_while_the_registry_is_away_the_last_good_copy_serves(
    put: Put, uri: str, away: Callable[[], None], caplog: pytest.LogCaptureFixture
) -> None:
    content_hash = put()
    fetch_model(CONV, uri=uri)
    away()
    with caplog.at_level(logging.WARNING):
        fetched = fetch_model(CONV, uri=uri)
    assert (fetched.model.content_hash, fetched.version, fetched.from_registry) == (content_hash, 1, False)
    assert "using the last good local copy (version 1)" in caplog.text


@pytest.mark.long
def test_a_deleted_database_is_a_registry_that_is_away(put: Put, uri: str, tmp_path: Path) -> None:
    content_hash = put()
    fetch_model(CONV, uri=uri)
    (tmp_path / "store" / "mlflow.db").unlink()
    assert fetch_model(CONV, uri=uri).model.content_hash == content_hash


def test_away_and_never_fetched(put: Put, uri: str, away: Callable[[], None]) -> None:
    put()
    away()
    with pytest.raises(RegistryUnavailableError, match=r"cannot be opened .*mlflow\.db"):
        fetch_model(CONV, uri=uri)


@pytest.mark.long
def test_another_registrys_copy_does_not_serve(put: Put, uri: str) -> None:
    put()
    fetch_model(CONV, uri=uri)
    with pytest.raises(RegistryUnavailableError, match=r"127\.0\.0\.1:9"):
        fetch_model(CONV, uri="http://127.0.0.1:9")


@pytest.mark.long
def test_a_broken_new_production_is_not_used(put: Put, uri: str, tmp_path: Path) -> None:
    first = put()
    fetch_model(CONV, uri=uri)
    put(note="second")
    newest = max((tmp_path / "store").rglob("model_tflops.lgbm.gz"), key=lambda p: p.stat().st_mtime_ns)
    newest.write_bytes(b"broken")
    assert fetch_model(CONV, uri=uri).model.content_hash == first


def test_a_broken_only_production_is_an_error(put: Put, uri: str, tmp_path: Path) -> None:
    put()
    for file in (tmp_path / "store").rglob("model_tflops.lgbm.gz"):
        file.write_bytes(b"broken")
    with pytest.raises(ArtefactError, match=r"changed or damaged after publishing"):
        fetch_model(CONV, uri=uri)
    assert copies(tmp_path) == []


@pytest.mark.long
def test_a_damaged_copy_is_fetched_again(put: Put, uri: str, away: Callable[[], None]) -> None:
    put()
    file = fetch_model(CONV, uri=uri).folder / "pool.json"
    file.write_text(file.read_text().replace("taps", "flat"))
    assert fetch_model(CONV, uri=uri).from_registry
    away()
    assert not fetch_model(CONV, uri=uri).from_registry  # the repaired copy


@pytest.mark.long
@pytest.mark.parametrize(
    "content",
    [
        "", "{", "[]", json.dumps({"content_hash": "../../x", "version": 1}), "[" * 100_000, '{"a":' * 100_000, "\0",
        '{"content_hash": "%s", "version": 1e400}' % ("0" * 64), '{"content_hash": "%s", "version": -1}' % ("0" * 64),
        '{"content_hash": "%s", "version": NaN}' % ("0" * 64), '{"content_hash": null, "version": true}',
        '{"content_hash": "%s", "version": ' % ("0" * 64) + "9" * 5000 + "}", " " * 100_000 + "{}",
    ],
)  # fmt: skip
def test_a_damaged_note_of_the_alias_is_no_copy(
    put: Put, uri: str, away: Callable[[], None], tmp_path: Path, content: str
) -> None:
    put()
    note = fetch_model(CONV, uri=uri).folder.parent / "production.json"
    assert note.is_file()
    note.write_text(content)
    assert fetch_model(CONV, uri=uri).from_registry  # starts, and replaces the note
    assert json.loads(note.read_text())["version"] == 1
    note.write_text(content)
    away()
    with pytest.raises(RegistryUnavailableError):
        fetch_model(CONV, uri=uri)


def test_a_cache_that_cannot_be_written_costs_only_the_copy(
    put: Put, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content_hash = put()
    (tmp_path / "file").touch()
    monkeypatch.setenv("TILEWISE_CACHE", str(tmp_path / "file" / "below"))
    assert fetch_model(CONV, uri=uri).model.content_hash == content_hash


@pytest.fixture
def dripping() -> Iterator[str]:
    """Return the URI of a server that answers with a byte every 50 ms."""
    stopped = threading.Event()

    def drip(connection: socket.socket) -> None:
        with connection:
            try:
                connection.recv(1 << 16)
                connection.sendall(
                    b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 100000\r\n\r\n{"
                )
                while not stopped.wait(0.05):
                    connection.sendall(b" ")
            except OSError:
                pass

    def serve() -> None:
        while not stopped.is_set():
            try:
                connection, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=drip, args=(connection,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"
        stopped.set()


class TestDrippingRegistry:
    @pytest.mark.long
    def test_a_registry_that_drips_is_left_at_the_deadline(
        self, put: Put, uri: str, dripping: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The time limit of HTTP clients holds for a single read, so each byte renews it."""
        put()
        monkeypatch.setattr(_model_source, "ANSWER_S", 1.0)
        start = time.monotonic()
        with pytest.raises(RegistryUnavailableError, match="the registry did not answer within 1 s"):
            fetch_model(CONV, uri=dripping)
        assert time.monotonic() - start < 5
        monkeypatch.setattr(_model_source, "ANSWER_S", 60.0)
        assert fetch_model(CONV, uri=uri).from_registry  # the interrupted call does not hold others

    @pytest.mark.long
    def test_the_last_good_copy_serves(
        self, put: Put, uri: str, dripping: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        content_hash = put()
        fetch_model(CONV, uri=uri)
        monkeypatch.setattr(_model_source.LocalCopies, "of", lambda *_, of=_model_source.LocalCopies.of: of(uri, CONV))
        monkeypatch.setattr(_model_source, "ANSWER_S", 1.0)
        fetched = fetch_model(CONV, uri=dripping)
        assert (fetched.model.content_hash, fetched.from_registry) == (content_hash, False)


class TestThreads:
    def test_within_a_session_of_the_same_thread_nothing_waits(self, put: Put, uri: str) -> None:
        """The call's own thread needs no turn that its caller holds."""
        put()
        start = time.monotonic()
        with registry_session(uri):
            assert fetch_model(CONV, uri=uri).from_registry
            assert find_by_alias(CONV, PRODUCTION) is not None
        assert time.monotonic() - start < 60

    def test_within_a_session_at_another_registry(self, put: Put, uri: str, tmp_path: Path) -> None:
        put()
        with registry_session(fresh_store(tmp_path / "other")):
            assert fetch_model(CONV, uri=uri).version == 1
            assert find_by_alias(CONV, PRODUCTION) is None, "the session's own registry again"

    def test_a_call_that_was_left_changes_nothing_when_it_ends(self, uri: str) -> None:
        left, ended = threading.Event(), threading.Event()

        def late() -> None:
            left.wait(10)
            ended.set()

        before = mlflow.get_tracking_uri(), dict(os.environ)
        with pytest.raises(RegistryUnavailableError, match=r"x cannot be read: .* did not answer within 0\.05 s"):
            call_within(0.05, uri, late, "x cannot be read")
        left.set()
        assert ended.wait(10)
        assert (mlflow.get_tracking_uri(), dict(os.environ)) == before

    def test_another_thread_that_keeps_the_registry_is_named(self, uri: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tilewise.registry._tracking.TURN_S", 0.1)
        held, done = threading.Event(), threading.Event()

        def hold() -> None:
            with registry_session(uri):
                held.set()
                done.wait(10)

        thread = threading.Thread(target=hold)
        thread.start()
        held.wait(10)
        try:
            with pytest.raises(RegistryUnavailableError, match="another thread of this process has used its registry"):
                call_within(1.0, uri, lambda: None, "x cannot be read")
        finally:
            done.set()
            thread.join()


class TestUnknown:
    def test_no_such_alias(self, put: Put, uri: str) -> None:
        put()
        with pytest.raises(
            UnknownTargetError, match=r"no version with alias 'previous' \(it has candidate, production\)"
        ):
            fetch_model(CONV, "previous", uri=uri)

    def test_no_such_target_lists_those_known(self, put: Put, uri: str) -> None:
        put()
        with pytest.raises(UnknownTargetError, match=f"known targets are {CONV}"):
            fetch_model("gemm_universal_fp8_sm90", uri=uri)


def test_the_applications_mlflow_is_left_as_it_was(put: Put, uri: str) -> None:
    put()
    before = mlflow.get_tracking_uri()
    fetch_model(CONV, uri=uri)
    assert mlflow.get_tracking_uri() == before

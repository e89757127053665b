"""Reaching MLflow: the choice of the URI, and clear, quick answers when nothing sound is there."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import mlflow
import pytest

from store import fresh_store
from tilewise.errors import ConfigError, RegistryUnavailableError
from tilewise.registry import connect, hide_password, is_missing_store, registry_session, resolve_tracking_uri
from tilewise.registry.training_runs import open_experiment


class TestResolveUri:
    def test_given_before_environment_before_default(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        assert resolve_tracking_uri() == f"sqlite:///{tmp_path}/mlflow.db"
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://elsewhere:5000")
        assert resolve_tracking_uri() == "http://elsewhere:5000"
        assert resolve_tracking_uri("sqlite:///here.db") == "sqlite:///here.db"

    def test_the_default_is_the_projects_also_from_a_folder_below(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "dvc.yaml").touch()
        (tmp_path / "docs" / "deep").mkdir(parents=True)
        monkeypatch.chdir(tmp_path / "docs" / "deep")
        assert resolve_tracking_uri() == f"sqlite:///{tmp_path}/mlflow.db"


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("http://user:secret@host:5000", "http://user:***@host:5000"),
        ("postgresql://user:se@cret@host/db", "postgresql://user:***@host/db"),
        ("sqlite:////a/b.db", "sqlite:////a/b.db"),
    ],
)
def test_passwords_are_not_shown(uri: str, expected: str) -> None:
    assert hide_password(uri) == expected


@pytest.mark.long
def test_connect_makes_a_store_and_returns_its_uri(tmp_path: Path) -> None:
    uri = f"sqlite:///{tmp_path}/new/folder/mlflow.db"
    assert is_missing_store(uri)
    with registry_session(uri) as connected:
        assert connected == uri
        assert not is_missing_store(uri)
        experiment = mlflow.get_experiment(open_experiment("some"))
        assert experiment.artifact_location == "file:mlartifacts/some"  # beside the SQLite file


@contextmanager
def listening(answer: bytes | None) -> Iterator[str]:
    """Return a server that answers every request with `answer`, or, with None, never."""
    if answer is None:
        with socket.create_server(("127.0.0.1", 0)) as silent:
            yield f"http://127.0.0.1:{silent.getsockname()[1]}"
        return

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(answer or b"")

        do_GET = do_POST

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()


class TestUnreachable:
    """Each within seconds, and naming where."""

    @pytest.fixture(autouse=True)
    def _quick(self) -> Iterator[None]:
        start = time.monotonic()
        yield
        assert time.monotonic() - start < 10

    def test_nobody_listens(self) -> None:
        with pytest.raises(RegistryUnavailableError, match=r"does not answer.*http://127.0.0.1:9\).*refused"):
            connect("http://127.0.0.1:9")

    @pytest.mark.long
    def test_a_server_that_never_answers(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")
        with listening(None) as uri, pytest.raises(RegistryUnavailableError, match=r"does not answer.*timed out"):
            connect(uri)

    def test_something_that_is_no_mlflow(self) -> None:
        with listening(b"<html>hello</html>") as uri, pytest.raises(RegistryUnavailableError, match="does not answer"):
            connect(uri)

    def test_passwords_stay_out_of_the_message(self) -> None:
        with pytest.raises(RegistryUnavailableError) as caught:
            connect("http://user:secret@127.0.0.1:9")
        assert "secret" not in str(caught.value)

    def test_a_database_server_that_is_away(self) -> None:
        with pytest.raises(RegistryUnavailableError, match=r"database cannot be opened \(postgresql://u:\*\*\*@"):
            connect("postgresql://u:secret@127.0.0.1:9/mlflow")

    def test_a_file_that_is_no_database(self, tmp_path: Path) -> None:
        (tmp_path / "mlflow.db").write_text("no database\n" * 100)
        with pytest.raises(RegistryUnavailableError, match=r"cannot be opened .*mlflow.db.*not a database"):
            connect(f"sqlite:///{tmp_path}/mlflow.db")

    def test_a_folder_that_cannot_be_made(self) -> None:
        with pytest.raises(RegistryUnavailableError, match=r"cannot be opened \(sqlite:////proc/none/mlflow.db\)"):
            connect("sqlite:////proc/none/mlflow.db")

    @pytest.mark.parametrize("uri", ["ftp://host/path", "nonsense:x"])
    def test_a_uri_of_no_known_kind_is_the_callers_mistake(self, uri: str) -> None:
        with pytest.raises(ConfigError, match=r"tracking\.uri must be a URI that MLflow supports, got"):
            connect(uri)


class TestOthersSettingsStay:
    def test_a_session_leaves_the_applications_server_alone(self, tmp_path: Path) -> None:
        own, ours = fresh_store(tmp_path / "own"), fresh_store(tmp_path / "ours")
        mlflow.set_tracking_uri(own)
        try:
            with registry_session(ours):
                assert mlflow.get_tracking_uri() == ours
            assert mlflow.get_tracking_uri() == own
        finally:
            mlflow.set_tracking_uri(None)  # type: ignore[arg-type]

    def test_the_environment_is_not_changed_by_a_session(self, tmp_path: Path) -> None:
        before = dict(os.environ)
        with registry_session(fresh_store(tmp_path)):
            pass
        changed = {k for k in before.keys() | os.environ.keys() if before.get(k) != os.environ.get(k)}
        assert not {k for k in changed if "HTTP" in k or "URI" in k}

    def test_patience_of_the_user_wins(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "6")
        with registry_session(fresh_store(tmp_path)):
            assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "6"


def test_an_experiment_that_was_deleted_comes_back(registry: str) -> None:
    first = open_experiment("some")
    mlflow.delete_experiment(first)
    assert open_experiment("some") == first
    assert mlflow.get_experiment(first).lifecycle_stage == "active"

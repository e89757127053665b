"""Reading the registry without MLflow gives the same as MLflow, and nothing that it cannot read is guessed."""

from __future__ import annotations

import http.server
import ipaddress
import json
import os
import sqlite3
import ssl
import subprocess
import sys
import threading
import urllib.parse
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TypeAlias

import mlflow
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

import tilewise
from registry.server import mlflow_server
from small_model import table, write_model
from store import fresh_store
from synthetic import CONV
from tilewise.errors import RegistryUnavailableError
from tilewise.registry import (
    PRODUCTION,
    Version,
    _plain_reader,
    find_by_alias,
    find_by_hash,
    find_by_number,
    list_aliases,
    list_targets,
    list_versions,
    read_description,
    registry_reader,
    registry_session,
    set_alias,
)
from tilewise.registry._packed_model import PACKED, pack
from tilewise.registry._plain_reader import open_reader
from tilewise.registry._tracking import plain_reader_in_use
from tilewise.registry.promotion import publish

PROBLEM = "problem={N:8,C:64,K:64,G:1,Hi:7,Wi:7,Y:1,X:1}"


def fill(uri: str, folder: Path) -> None:
    """Publish two versions, delete a third, and add a prompt, which is no model."""
    with registry_session(uri):
        for note in ("first", "second", "third"):
            version = publish(write_model(folder / note / CONV, note=note))
            if note == "second":
                set_alias(version, PRODUCTION)
        mlflow.MlflowClient().delete_registered_model_alias(CONV, "candidate")
        mlflow.MlflowClient().delete_model_version(CONV, "3")
        mlflow.genai.register_prompt("a_prompt", "Say {{ word }}")


def everything() -> list[object]:
    """Return all that can be read."""
    versions = list_versions(CONV)
    return [
        list_targets(),
        list_aliases(CONV),
        list_aliases("nothing"),
        versions,
        find_by_number(CONV, 1),
        find_by_number(CONV, 9),
        find_by_alias(CONV, PRODUCTION),
        find_by_alias(CONV, "nothing"),
        find_by_alias("nothing", PRODUCTION),
        find_by_hash(CONV, versions[0].content_hash),
        list_versions("nothing"),
        [read_description(v) for v in versions],
    ]


def both(uri: str) -> tuple[list[object], list[object]]:
    """Return everything, read without MLflow and with it."""
    with registry_reader(uri):
        assert plain_reader_in_use() is not None
        plain = everything()
    with registry_session(uri):
        assert plain_reader_in_use() is None
        return plain, everything()


@pytest.mark.long
def test_a_database_is_read_as_mlflow_reads_it(tmp_path: Path) -> None:
    uri = fresh_store(tmp_path / "store")
    fill(uri, tmp_path)
    plain, by_mlflow = both(uri)
    assert plain == by_mlflow
    assert isinstance(plain[6], Version)
    assert plain[6].number == 2


@pytest.mark.long
def test_a_server_is_read_as_mlflow_reads_it(tmp_path: Path) -> None:
    with mlflow_server(tmp_path) as uri:
        fill(uri, tmp_path)
        plain, by_mlflow = both(uri)
        assert without_mlflow(["select", PROBLEM], tmp_path, uri) == "0 False", "nor do files need it"
    assert plain == by_mlflow


class FileServer(http.server.BaseHTTPRequestHandler):
    """Answers as MLflow's server with the packed model of one version would."""

    place = "mlflow-artifacts:/7"
    path_of_content = f"/api/2.0/mlflow-artifacts/artifacts/7/{PACKED}"
    content = pack({"a.json": b"12345", "b.lgbm.gz": b"678"})

    def do_GET(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        found = {"/api/2.0/mlflow/model-versions/get-download-uri": json.dumps({"artifact_uri": self.place}).encode()}
        answer = {**found, self.path_of_content: self.content}.get(url.path)
        self.send_response(404 if answer is None else 200)
        self.end_headers()
        self.wfile.write(answer or b"")

    def log_message(self, *_: object) -> None:
        """Print nothing."""


Fetch: TypeAlias = Callable[..., dict[str, bytes] | None]


class TestModelFiles:
    @pytest.fixture
    def fetch(self) -> Fetch:
        """Return a function that reads a version's files from a server."""

        def _fetch(**attributes: object) -> dict[str, bytes] | None:
            handler = type("Handler", (FileServer,), attributes)
            with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
                threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
                with open_reader(f"http://127.0.0.1:{server.server_port}") as reader:
                    assert reader is not None
                    try:
                        return reader.model_files(CONV, 1)
                    finally:
                        server.shutdown()

        return _fetch

    def test_all_are_read(self, fetch: Fetch) -> None:
        assert fetch() == {"a.json": b"12345", "b.lgbm.gz": b"678"}

    @pytest.mark.parametrize("content", [b"", b"12345", FileServer.content[:-1], pack({"../a": b"5"})])
    def test_what_is_no_packed_model(self, fetch: Fetch, content: bytes) -> None:
        assert fetch(content=content) is None

    def test_a_version_of_an_earlier_tilewise_has_none(self, fetch: Fetch) -> None:
        assert fetch(path_of_content="/elsewhere") is None

    def test_one_that_is_too_large(self, fetch: Fetch, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(_plain_reader, "_MAX_BYTES", len(FileServer.content))
        assert fetch() is not None
        monkeypatch.setattr(_plain_reader, "_MAX_BYTES", len(FileServer.content) - 1)
        assert fetch() is None

    @pytest.mark.parametrize("place", ["s3://bucket/7", "mlflow-artifacts://elsewhere/7", "/7", "file:///7", None])
    def test_other_stores_are_left_to_mlflow(self, fetch: Fetch, place: str | None) -> None:
        assert fetch(place=place) is None


class TestOnlyMlflowCan:
    """Cases that the plain reader leaves to MLflow."""

    @pytest.mark.parametrize(
        "uri",
        ["postgresql://host/db", "databricks", "file:///x", "http://user:secret@host", "sqlite:////nowhere/mlflow.db"],
    )
    def test_other_stores(self, uri: str) -> None:
        with open_reader(uri) as reader:
            assert reader is None

    @pytest.mark.parametrize("name", ["MLFLOW_TRACKING_AUTH", "MLFLOW_TRACKING_CLIENT_CERT_PATH", "MLFLOW_WORKSPACE"])
    def test_settings_of_its_client(self, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(name, "x")
        with open_reader("http://127.0.0.1:9") as reader:
            assert reader is None

    def test_tables_of_another_version(self, tmp_path: Path) -> None:
        uri = fresh_store(tmp_path)
        with sqlite3.connect(tmp_path / "mlflow.db") as connection:
            connection.execute("ALTER TABLE model_version_tags RENAME COLUMN value TO content")
        with open_reader(uri) as reader:
            assert reader is None


def test_a_server_that_is_away_is_named() -> None:
    with (
        pytest.raises(RegistryUnavailableError, match=r"does not answer; .*\(http://127\.0\.0\.1:9\).*(?i:refused)"),
        registry_reader("http://127.0.0.1:9"),
    ):
        list_targets()


class EmptyServer(http.server.BaseHTTPRequestHandler):
    """Answers as MLflow's server without models would."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"registered_models": []}')

    def log_message(self, *_: object) -> None:
        """Print nothing."""


def write_certificate(path: Path) -> None:
    """Write the key and the certificate of a private authority for this machine to one file."""
    key, now = ec.generate_private_key(ec.SECP256R1()), datetime.now(UTC)
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a private authority")])
    builder = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
    builder = builder.not_valid_before(now - timedelta(days=1)).not_valid_after(now + timedelta(days=1))
    here = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    made = builder.add_extension(here, critical=False).sign(key, hashes.SHA256())
    form, plain = serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    pem = serialization.Encoding.PEM
    path.write_bytes(key.private_bytes(pem, form, plain) + made.public_bytes(pem))


class TestPrivateAuthority:
    """A server whose certificate only the environment says to trust, as MLflow's client reads it."""

    @pytest.fixture
    def uri(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
        for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
            monkeypatch.delenv(name, raising=False)
        write_certificate(tmp_path / "ca.pem")
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(tmp_path / "ca.pem")
        with http.server.ThreadingHTTPServer(("127.0.0.1", 0), EmptyServer) as server:
            server.socket = context.wrap_socket(server.socket, server_side=True)
            threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
            yield f"https://127.0.0.1:{server.server_port}"
            server.shutdown()

    @pytest.mark.parametrize("name", ["REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"])
    def test_named_it_is_trusted(self, name: str, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(name, str(tmp_path / "ca.pem"))
        with registry_reader(uri):
            assert plain_reader_in_use() is not None
            assert list_targets() == []

    def test_not_named_it_is_told(self, uri: str) -> None:
        message = r"^the certificate of the MLflow tracking server is not trusted; name the file .* REQUESTS_CA_BUNDLE"
        with registry_reader(uri), pytest.raises(RegistryUnavailableError, match=message) as raised:
            list_targets()
        assert "start it" not in str(raised.value)

    @pytest.mark.parametrize("content", [None, b"no certificate"])
    def test_a_file_without_certificates_is_named(
        self, uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes | None
    ) -> None:
        if content:
            (tmp_path / "other.pem").write_bytes(content)
        monkeypatch.setenv("CURL_CA_BUNDLE", str(tmp_path / "other.pem"))
        message = r"^CURL_CA_BUNDLE must name a file or folder with certificates in PEM format, got '.*other\.pem': "
        with registry_reader(uri), pytest.raises(RegistryUnavailableError, match=message):
            list_targets()

    def test_a_server_without_tls_needs_none(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("REQUESTS_CA_BUNDLE", "/nowhere")
        with registry_reader("http://127.0.0.1:9"), pytest.raises(RegistryUnavailableError, match="start it"):
            list_targets()


def without_mlflow(words: list[str], folder: Path, uri: str) -> str:
    """Run a command in a process of its own; return its last line: exit status, and whether MLflow was imported."""
    code = "import sys; from tilewise.cli.main import main; print(main(sys.argv[1:]), 'mlflow' in sys.modules)"
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(tilewise.__file__).parents[1]),
        "TILEWISE_CACHE": str(folder / "cache"),
        "MLFLOW_TRACKING_URI": uri,
    }
    command = [sys.executable, "-c", code, *words]
    done = subprocess.run(command, env=environment, cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.splitlines()[-1]


@pytest.mark.long
def test_repeating_a_promotion_does_not_import_mlflow(tmp_path: Path) -> None:
    uri = fresh_store(tmp_path / "store")
    table().to_parquet(tmp_path / "data.parquet")
    write_model(tmp_path / "models" / CONV)
    floors = [f"gate.floors.grouped_conv.forward.{name}=50" for name in ("mean", "p10")]
    rules = [*floors, "gate.min_problems=5", "gate.override.reason='a test'"]
    outputs = [without_mlflow(["promote", "data=data.parquet", *rules], tmp_path, uri) for _ in range(2)]
    assert outputs == ["0 True", "0 False"]


@pytest.mark.long
@pytest.mark.parametrize(
    "words", [["select", PROBLEM], ["explain", PROBLEM], ["registry"], ["registry", "show"]], ids=lambda w: " ".join(w)
)
def test_a_command_that_only_reads_does_not_import_mlflow(words: list[str], tmp_path: Path) -> None:
    uri = fresh_store(tmp_path / "store")
    with registry_session(uri):
        set_alias(publish(write_model(tmp_path / CONV)), PRODUCTION)
    outputs = [without_mlflow(words, tmp_path, uri) for _ in range(2)]  # the first selection fetches the model
    assert outputs[1] == "0 False"

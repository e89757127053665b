"""A logged file that is absent is lost; of a store that cannot be reached nothing is known, whatever kind it is."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import mlflow
import pytest

from extras import has_extra
from synthetic import CONV
from tilewise.errors import RegistryUnavailableError
from tilewise.registry import Version, has_files
from tilewise.registry._versions import create_version
from tilewise.registry.promotion._logged_files import FOLDER, load_logged
from tilewise.registry.training_runs import open_experiment

NEEDS_S3 = pytest.mark.skipif(
    not has_extra("servers"), reason="needs the extra 'servers': pip install 'tilewise[servers]'"
)
EMPTY_BUCKET = b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"></ListBucketResult>'


class _EmptyStore(BaseHTTPRequestHandler):
    """An S3 store and MLflow's proxy of one, both without files."""

    status = 200

    def do_GET(self) -> None:
        body = EMPTY_BUCKET if "list-type=2" in self.path else b"{}"
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def store(registry: str) -> Iterator[ThreadingHTTPServer]:
    """Return a running store; clients ask it once."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _EmptyStore) as server, pytest.MonkeyPatch.context() as patch:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        patch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
        patch.setenv("MLFLOW_S3_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
        for name, value in {"ACCESS_KEY_ID": "id", "SECRET_ACCESS_KEY": "key", "MAX_ATTEMPTS": "1"}.items():
            patch.setenv(f"AWS_{name}", value)
        yield server
        server.shutdown()


def version_at(location: str) -> Version:
    """Return a version whose files and run are in a folder of an artefact store."""
    run = mlflow.MlflowClient().create_run(mlflow.create_experiment("elsewhere", location))
    return create_version(CONV, f"{run.info.artifact_uri}/model", run.info.run_id, None, {}, "")


@pytest.mark.long
@pytest.mark.parametrize("kind", ["proxy", pytest.param("s3", marks=NEEDS_S3)])
@pytest.mark.parametrize("status", [200, 403, 404, 500, None])
def test_a_remote_store(
    store: ThreadingHTTPServer, kind: str, status: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder without files is listed with status 200; 404 means a wrong bucket or address. None: nothing listens."""
    proxy = f"http://127.0.0.1:{store.server_port}/api/2.0/mlflow-artifacts/artifacts/runs"
    version = version_at(proxy if kind == "proxy" else "s3://bucket/runs")
    if status == 200:
        assert load_logged(version, "holdout.json") == ""
        assert not has_files(version)
        return
    monkeypatch.setattr(_EmptyStore, "status", status)
    if status is None:
        store.shutdown()
        store.server_close()
    with pytest.raises(
        RegistryUnavailableError, match=r"^holdout\.json of .* version 1 .* again when the artefact store answers"
    ):
        load_logged(version, "holdout.json")
    with pytest.raises(RegistryUnavailableError, match=r"^the files of .* version 1 .* cannot be listed"):
        has_files(version)


class TestALocalStore:
    @pytest.fixture
    def version(self, registry: str) -> Version:
        run = mlflow.MlflowClient().create_run(open_experiment("local"))
        mlflow.MlflowClient().log_text(run.info.run_id, "kept", f"{FOLDER}/holdout.json")
        return Version(CONV, 1, run.info.run_id, "", {}, 0)

    def test_its_text_is_read(self, version: Version) -> None:
        assert load_logged(version, "holdout.json") == "kept"

    def test_an_absent_file_run_or_folder_is_lost(self, version: Version, tmp_path: Path) -> None:
        assert load_logged(version, "other.json") == ""
        assert load_logged(Version(CONV, 1, "0" * 32, "", {}, 0), "holdout.json") == ""
        assert load_logged(Version(CONV, 1, None, "", {}, 0), "holdout.json") == ""
        shutil.rmtree(tmp_path / "store" / "mlartifacts")
        assert load_logged(version, "holdout.json") == ""

    def test_a_damaged_text_is_lost(self, version: Version, tmp_path: Path) -> None:
        next((tmp_path / "store").rglob("holdout.json")).write_bytes(b"\xff")
        assert load_logged(version, "holdout.json") == ""

    def test_a_folder_that_cannot_be_read_is_no_lost_one(self, version: Version, tmp_path: Path) -> None:
        folder = tmp_path / "store" / "mlartifacts"
        shutil.rmtree(folder)
        folder.symlink_to(folder)  # like a lost mount: the system answers with an error, not with "no such file"
        with pytest.raises(RegistryUnavailableError, match=r"^holdout\.json of .* Too many levels of symbolic links"):
            load_logged(version, "holdout.json")

"""A project that is moved or copied keeps its runs, models and artefacts, and leaves the folder it came from alone."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import mlflow
import pytest
import requests

from registry.server import START_S, stop, wait_for
from small_model import write_model
from store import fresh_store
from synthetic import CONV
from tilewise.registry import PRODUCTION, find_by_alias, has_files, registry_session, set_alias
from tilewise.registry.promotion import publish
from tilewise.registry.training_runs import open_experiment
from tilewise.servers._service_process import free_ports

_OPEN = f"""
import mlflow
from pathlib import Path
model = mlflow.pyfunc.load_model("models:/{CONV}@production")
version = mlflow.MlflowClient().get_model_version_by_alias("{CONV}", "production")
assert Path(mlflow.artifacts.download_artifacts(run_id=version.run_id, artifact_path="note.txt")).read_text() == "noted"
assert model.metadata.metadata["target"] == "{CONV}"
"""
_LOG = f"""
import mlflow
mlflow.set_experiment("{CONV}")
mlflow.log_text("later", "later.txt")
"""


def _publish(folder: Path) -> str:
    """Publish a model to a store in `folder` and make it production; return its run."""
    with registry_session(fresh_store(folder)):
        version = publish(write_model(folder / "model"))
        set_alias(version, PRODUCTION)
        assert version.run_id
        mlflow.MlflowClient().log_text(version.run_id, "noted", "note.txt")
        return version.run_id


def _files(folder: Path) -> list[Path]:
    return sorted(p.relative_to(folder) for p in (folder / "mlartifacts").rglob("*") if p.is_file())


def _run(code: str, folder: Path, *, cwd: Path) -> None:
    """Run code of a user who knows MLflow only, on the store in `folder`."""
    environment = {**os.environ, "MLFLOW_TRACKING_URI": f"sqlite:///{folder / 'mlflow.db'}"}
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.long
@pytest.mark.parametrize("elsewhere", [False, True])
def test_a_moved_project_opens_from_any_folder(tmp_path: Path, elsewhere: bool) -> None:
    _publish(tmp_path / "old")
    new = (tmp_path / "old").rename(tmp_path / "new")
    _run(_OPEN, new, cwd=tmp_path if elsewhere else new)


@pytest.mark.long
def test_a_copy_reads_and_writes_its_own_files(tmp_path: Path) -> None:
    _publish(tmp_path / "old")
    copy = Path(shutil.copytree(tmp_path / "old", tmp_path / "copy"))
    before = _files(tmp_path / "old")
    _run(_LOG, copy, cwd=tmp_path)
    assert _files(tmp_path / "old") == before
    assert [p.name for p in set(_files(copy)) - set(before)] == ["later.txt"]


@pytest.mark.long
def test_mlflows_pages_show_the_artefacts_of_a_moved_project(tmp_path: Path) -> None:
    run_id = _publish(tmp_path / "old")
    new = (tmp_path / "old").rename(tmp_path / "new")
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{new / 'mlflow.db'}"]
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    with (tmp_path / "server.log").open("wb") as log:
        process = subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=log, stderr=log, start_new_session=True
        )
    try:
        wait_for(f"http://127.0.0.1:{port}/health", process)
        where = {"run_id": run_id, "path": "note.txt"}
        page = requests.get(f"http://127.0.0.1:{port}/get-artifact", params=where, timeout=START_S)
    finally:
        stop(process)
    assert page.text == "noted"


def _state(database: Path, statement: str) -> list[str]:
    with closing(sqlite3.connect(database)) as connection, connection:
        return [str(row[0]) for row in connection.execute(statement).fetchall()]


_PATHS = (
    "SELECT artifact_location FROM experiments WHERE experiment_id > 0",
    "SELECT artifact_uri FROM runs",
    "SELECT artifact_location FROM logged_models",
    "SELECT storage_location FROM model_versions",
)


@pytest.mark.long
@pytest.mark.parametrize("moved", [False, True])
def test_a_store_of_an_earlier_version_is_converted(tmp_path: Path, moved: bool) -> None:
    _publish(tmp_path / "old")
    database = tmp_path / "old" / "mlflow.db"
    relative = [_state(database, s) for s in _PATHS]
    assert all(path.startswith(f"file:mlartifacts/{CONV}") for paths in relative for path in paths)
    for statement in _PATHS:  # as MLflow wrote them
        column, table = statement.split()[1], statement.split()[3]
        _state(
            database,
            f"UPDATE {table} SET {column} = '{tmp_path}/old/' || substr({column}, 6) WHERE {column} LIKE 'file:%'",
        )
    if moved:
        database = (tmp_path / "old").rename(tmp_path / "new") / "mlflow.db"
    with registry_session(f"sqlite:///{database}"):
        version = find_by_alias(CONV, PRODUCTION)
        assert version
        assert has_files(version)
    assert [_state(database, s) for s in _PATHS] == relative


def test_other_experiments_keep_their_paths(tmp_path: Path) -> None:
    with registry_session(fresh_store(tmp_path / "store")):
        own = mlflow.create_experiment("own", str(tmp_path / "elsewhere" / "mlartifacts" / "own"))
        open_experiment("some")
        assert mlflow.get_experiment(own).artifact_location == f"{tmp_path}/elsewhere/mlartifacts/own"

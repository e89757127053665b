"""MLflow's access to local artefacts, with relative paths resolved against the folder of the SQLite file.

MLflow loads this class by the entry point in pyproject.toml and uses it for ``file:`` URIs. Without tilewise installed,
relative paths work in the project's folder only.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

from mlflow.entities import FileInfo
from mlflow.store.artifact.local_artifact_repo import LocalArtifactRepository

from tilewise.registry._artifact_paths import is_relative
from tilewise.registry._tracking import sqlite_path

_SERVED_STORE = "_MLFLOW_SERVER_FILE_STORE"  # where `mlflow server` and `mlflow ui` keep --backend-store-uri


class StoreArtifactRepository(LocalArtifactRepository):
    """Local artefacts below the folder of the SQLite file that names them. An absolute URI means what it says."""

    def __init__(self, artifact_uri: str, tracking_uri: str | None = None, registry_uri: str | None = None) -> None:
        super().__init__(artifact_uri, tracking_uri, registry_uri)
        if is_relative(artifact_uri):
            self._artifact_dir = str(_store_folder(tracking_uri) / self._artifact_dir)

    def list_artifacts(self, path: str | None = None) -> list[FileInfo]:
        """List a folder; MLflow takes one that cannot be read, such as a lost mount, for one that does not exist."""
        with suppress(FileNotFoundError, NotADirectoryError):
            Path(self._artifact_dir, path or "").stat()
        return list(super().list_artifacts(path))  # type: ignore[no-untyped-call]


def _store_folder(tracking_uri: str | None) -> Path:
    """Return the folder of the SQLite file in use; the current folder where the store is no such file."""
    import mlflow

    uri = tracking_uri or os.environ.get(_SERVED_STORE) or mlflow.get_tracking_uri()
    return sqlite_path(uri).absolute().parent if uri.startswith("sqlite:") else Path.cwd()

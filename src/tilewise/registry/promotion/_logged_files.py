"""The files that a promotion logs to the run of a version, read back."""

from __future__ import annotations

import hashlib
import tempfile
from pathlib import Path

from tilewise.gate import DECISION_FILE
from tilewise.registry._registered_models import is_missing
from tilewise.registry._tracking import client_in_use, translate_store_errors, uri_in_use
from tilewise.registry._versions import Version, list_stored

FOLDER = "promotion"
HOLDOUT_FILE = "holdout.json"
RECORD_TAG = "gate_record"  # digest of the decision's text; set once the log is complete


def text_digest(text: str) -> str:
    """Return the SHA-256 of a text."""
    return hashlib.sha256(text.encode()).hexdigest()


def logged_decision(version: Version) -> str:
    """Return the text of a version's last decision in the registry, or ""."""
    return load_logged(version, DECISION_FILE) if RECORD_TAG in version.tags else ""


def load_logged(version: Version, name: str) -> str:
    """Return the text of a logged file, or "" if it is missing or no text.

    Raises:
        RegistryUnavailableError: The store cannot be reached, so nothing is known about the file.
    """
    if version.run_id is None:
        return ""
    with translate_store_errors(
        f"{name} of {version} cannot be read; run the command again when the artefact store answers"
    ):
        return _read(version.run_id, name)


def _read(run_id: str, name: str) -> str:
    """Return the text of a logged file, or "".

    MLflow reports every failure of a download from ``runs:/`` as a missing file, so the folder of the run is listed.
    """
    import mlflow
    from mlflow.exceptions import MlflowException

    try:
        folder = f"{client_in_use().get_run(run_id).info.artifact_uri}/{FOLDER}"
        if name not in list_stored(folder):
            return ""
        with tempfile.TemporaryDirectory() as scratch:
            uri = f"{folder}/{name}"
            path = mlflow.artifacts.download_artifacts(artifact_uri=uri, dst_path=scratch, tracking_uri=uri_in_use())
            return Path(path).read_text("utf-8")
    except UnicodeDecodeError:
        return ""
    except MlflowException as e:
        if is_missing(e):  # the run
            return ""
        raise

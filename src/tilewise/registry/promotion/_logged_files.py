"""The files that a promotion logs to the run of a version, read back."""

from __future__ import annotations

import hashlib

from tilewise.gate import DECISION_FILE
from tilewise.registry._versions import Version

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
    """Return the text of a logged file, or "" if it is missing or unreadable."""
    import mlflow

    if version.run_id is None:
        return ""
    try:
        return str(mlflow.artifacts.load_text(f"runs:/{version.run_id}/{FOLDER}/{name}"))
    except (mlflow.exceptions.MlflowException, OSError, UnicodeDecodeError):
        return ""

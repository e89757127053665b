"""An empty MLflow database for a test: migrated once a process, then copied, as migrating takes seconds."""

from __future__ import annotations

import shutil
import tempfile
from functools import cache
from pathlib import Path

from tilewise.registry import registry_session


def fresh_store(folder: Path) -> str:
    """Put an empty store into `folder`; returns its URI."""
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(_template(), folder / "mlflow.db")
    return f"sqlite:///{folder / 'mlflow.db'}"


@cache
def _template() -> Path:
    path = Path(tempfile.mkdtemp()) / "mlflow.db"
    with registry_session(f"sqlite:///{path}"):
        return path

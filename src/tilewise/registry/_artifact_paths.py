"""Artefact paths that survive moving or copying a project: relative to the folder of the SQLite file.

MLflow turns the artefact folder of an experiment into an absolute path and copies it to runs, logged models and
versions. A copied project would then read and write in the folder it came from. MLflow takes a relative ``file:`` URI
from its tables as it stands, but resolves it against the current folder, so
:class:`~tilewise.registry._artifact_repository.StoreArtifactRepository` resolves it against the SQLite file.
"""

from __future__ import annotations

import logging
import sqlite3
from contextlib import closing
from pathlib import Path

ARTIFACTS = "mlartifacts"
_SCHEME = "file:"
# MLflow derives the others from the experiment's.
_PLACES = (
    ("experiments", "artifact_location"),
    ("runs", "artifact_uri"),
    ("logged_models", "artifact_location"),
    ("model_versions", "storage_location"),
)
_WAIT_S = 30.0

_log = logging.getLogger(__name__)


def is_relative(uri: str) -> bool:
    """Return whether an artefact URI is a path below the folder of the SQLite file."""
    return uri.startswith(_SCHEME) and not uri.startswith(f"{_SCHEME}/")


def make_relative(database: Path) -> None:
    """Make the absolute paths of tilewise's experiments relative; other experiments stay as they are.

    That covers stores of earlier versions, also those that were moved before: then the stated folder does not exist.

    Args:
        database: an SQLite file with MLflow's tables.
    """
    try:
        with closing(sqlite3.connect(database, timeout=_WAIT_S)) as connection, connection:
            for old, new in _changes(connection, database.absolute().parent):
                for table, column in _PLACES:
                    below = f"substr({column} || '/', 1, {len(old) + 1}) = ?"
                    rest = f"substr({column}, {len(old) + 1})"
                    connection.execute(f"UPDATE {table} SET {column} = ? || {rest} WHERE {below}", (new, f"{old}/"))
    except sqlite3.Error as e:  # a read-only file, or tables of another MLflow: its paths stay as they are
        _log.warning("%s: artefact paths stay absolute, so the folder cannot be moved: %s", database, e)


def _changes(connection: sqlite3.Connection, folder: Path) -> list[tuple[str, str]]:
    """Return the old and new location of each experiment to change."""
    rows = connection.execute(
        "SELECT name, artifact_location FROM experiments WHERE artifact_location LIKE ?", (f"/%/{ARTIFACTS}/%",)
    ).fetchall()
    found = []
    for name, location in rows:
        path = f"{ARTIFACTS}/{name}"
        moved = location.endswith(f"/{path}") and not Path(location).exists() and (folder / path).exists()
        if location == str(folder / path) or moved:
            found.append((location, f"{_SCHEME}{path}"))
    return found

"""Folders in which a user's dispatchers keep fetched models, compiled forms and measurements."""

from __future__ import annotations

import os
from pathlib import Path

MEASURED_FOLDER = "measured"  # of measurements, in the cache folder


def cache_folder() -> Path:
    """Return ``TILEWISE_CACHE``, or ``~/.cache/tilewise`` if the variable is not set."""
    return Path(os.environ.get("TILEWISE_CACHE") or Path.home() / ".cache" / "tilewise")


def compiled_folder() -> Path:
    """Return the folder for the compiled forms that :func:`tilewise.model.load_artefact` keeps."""
    return cache_folder() / "compiled"

"""Where dispatchers of this user keep what they fetched, compiled and measured."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``TILEWISE_CACHE``, else ``~/.cache/tilewise``."""
    return Path(os.environ.get("TILEWISE_CACHE") or Path.home() / ".cache" / "tilewise")


def compiled_folder() -> Path:
    """For :func:`tilewise.model.artefact.load_artefact` to keep compiled forms in."""
    return cache_folder() / "compiled"

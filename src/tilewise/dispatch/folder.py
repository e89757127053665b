"""Where dispatchers of this user keep what they fetched and measured."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """``TILEWISE_CACHE``, else ``~/.cache/tilewise``."""
    return Path(os.environ.get("TILEWISE_CACHE") or Path.home() / ".cache" / "tilewise")

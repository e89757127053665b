"""Notes of the contents that an alias named: the copies to serve while the registry is unavailable or refuses.

A file of an alias names the last content, and those before::

    {"content_hash": "3f0c...", "version": 3, "before": [{"content_hash": "9a1b...", "version": 2}]}
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from tilewise.files import Plain, write_text

HASH = re.compile("[0-9a-f]{64}")  # the hash names a folder, so any other text is refused
_MAX_BYTES = 4096  # a note takes 100 bytes
_MAX_NOTES = 4


class AliasNote(NamedTuple):
    """A content and version that an alias named."""

    content_hash: str
    version: int


def read_notes(file: Path) -> list[AliasNote]:
    """Return the notes of an alias, the last first; none if they are missing or damaged; those are replaced later."""
    try:
        with file.open("rb") as opened:
            data = opened.read(_MAX_BYTES + 1)
        values = json.loads(data) if len(data) <= _MAX_BYTES else None
    except (OSError, ValueError, RecursionError):
        return []
    if not isinstance(values, dict) or (last := _note(values)) is None:
        return []
    before = values.get("before")
    others = (_note(value) for value in before) if isinstance(before, list) else ()
    return [last, *(note for note in others if note is not None)][:_MAX_NOTES]


def write_notes(file: Path, notes: Sequence[AliasNote]) -> None:
    """Write the notes of an alias, the last first; without any, no file remains.

    Raises:
        OSError: the folder cannot be written.
    """
    if not notes:
        file.unlink(missing_ok=True)
        return
    last, *before = (note._asdict() for note in notes[:_MAX_NOTES])
    write_text(file, json.dumps(last | ({"before": before} if before else {})) + "\n")


def _note(values: Plain) -> AliasNote | None:
    if not isinstance(values, dict):
        return None
    content_hash, version = values.get("content_hash"), values.get("version")
    if not isinstance(content_hash, str) or not HASH.fullmatch(content_hash):
        return None
    if not isinstance(version, int) or isinstance(version, bool) or not 0 < version < 1 << 63:
        return None
    return AliasNote(content_hash, version)

"""The files that tell of a promotion: ``promotion.json``, ``promotion.html``. Equal decisions make equal bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewise.files import write_text

RECORD, PAGE = "promotion.json", "promotion.html"


def to_text(record: Mapping[str, Any]) -> str:
    """The record as JSON."""
    return json.dumps(record, indent=1) + "\n"


def parse(text: str) -> dict[str, Any] | None:
    """A record, or None where the text is none."""
    try:
        record = json.loads(text)
        return record if {"outcome", "candidate"} <= set(record) else None
    except (ValueError, TypeError):
        return None


def read(path: Path) -> str:
    """A file's text, "" where there is none."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def write(path: Path, text: str) -> None:
    """Write a file that would differ.

    Raises:
        OSError: the folder cannot be written.
    """
    if read(path) != text:
        write_text(path, text)

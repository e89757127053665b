"""``promotion.json`` and ``promotion.html``, the two files of a promotion. Equal decisions give equal bytes."""

from __future__ import annotations

import json
from pathlib import Path

from tilewise.files import write_text
from tilewise.gate._decision_format import PromotionDecision

DECISION_FILE, DECISION_PAGE = "promotion.json", "promotion.html"


def decision_to_json(decision: PromotionDecision) -> str:
    """Return the text of ``promotion.json``."""
    return json.dumps(decision, indent=1) + "\n"


def parse_decision(text: str) -> PromotionDecision | None:
    """Return the decision in `text`, or None if `text` is not one."""
    try:
        decision: PromotionDecision = json.loads(text)
        return decision if {"outcome", "candidate"} <= set(decision) else None
    except (ValueError, TypeError):
        return None


def read_decision_text(path: Path) -> str:
    """Return the text of a decision's file, or "" if it is missing or unreadable."""
    try:
        return path.read_text()
    except (OSError, UnicodeDecodeError):
        return ""


def write_decision_text(path: Path, text: str) -> None:
    """Write `text` to `path`, unless the file holds it already: DVC would see a new modification time.

    Raises:
        OSError: The folder cannot be written.
    """
    if read_decision_text(path) != text:
        write_text(path, text)

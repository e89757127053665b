"""The files of a promotion, its page and its figures for DVC. Equal decisions give equal bytes."""

from __future__ import annotations

import json
from pathlib import Path

from tilewise.files import write_text
from tilewise.gate._decision_format import PromotionDecision, is_decision

DECISION_FILE, DECISION_PAGE, OUTCOME_FILE = "promotion.json", "promotion.html", "outcome.json"
_STATISTICS = {"mean": "mean", "p10": "p10", "worst": "min"}  # of DVC's tables, by their names in the decision


def decision_to_json(decision: PromotionDecision) -> str:
    """Return the text of ``promotion.json``."""
    return json.dumps(decision, indent=1) + "\n"


def outcome_to_json(decision: PromotionDecision) -> str:
    """Return the text of ``outcome.json``: the few figures of a decision that DVC's tables show."""
    gate = decision.get("gate") or {}
    judged = {"candidate": gate.get("candidate"), "production": gate.get("production")}
    figures = {
        name: {short: round(values[key], 5) for short, key in _STATISTICS.items() if key in values}
        for name, values in judged.items()
        if values
    }
    return json.dumps({"outcome": decision["outcome"], **figures}, indent=1) + "\n"


def parse_decision(text: str) -> PromotionDecision | None:
    """Return the decision in `text`, or None if `text` is not one."""
    try:
        decision: object = json.loads(text)
        json.dumps(decision, ensure_ascii=False).encode()  # half a character could not be written again
    except (ValueError, RecursionError):
        return None
    return decision if is_decision(decision) else None


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

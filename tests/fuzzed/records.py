"""Records of the gate under fuzz: decisions of promotions, shadow observations, recorded holdouts."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any, cast

from fuzzed.contract import Outcome, Reader, refused
from gate.shadowed import observed
from gate.test_decision_page import decision
from tilewise.errors import DataError
from tilewise.gate import (
    Observation,
    decision_to_html,
    decision_to_json,
    outcome_to_json,
    parse_decision,
    read_decision_text,
    read_observations,
)
from tilewise.registry.promotion._holdout_problems import HoldoutProblems


@cache
def _decision_bytes() -> bytes:
    return decision_to_json(cast(Any, decision())).encode()


def _read_decision(content: bytes, folder: Path) -> Outcome:
    """Read a decision: it is one whose page and figures can be written again, or none."""
    path = folder / "promotion.json"
    path.write_bytes(content)
    found = parse_decision(read_decision_text(path))
    if found is None:
        return "refused"
    page = decision_to_html(found)
    assert "<script" not in page.lower()
    page.encode()
    outcome_to_json(found).encode()
    decision_to_json(found).encode()
    return "read"


@cache
def _observation_bytes() -> bytes:
    return "".join(f"{o.dumps()}\n" for o in observed([2.0, None, 0.5])).encode()


def _read_observed(content: bytes, folder: Path) -> Outcome:
    path = folder / "shadow.jsonl"
    path.write_bytes(content)
    try:
        found = read_observations(path)
    except DataError as e:
        return refused(e, str(path))
    assert all(Observation.loads(o.dumps()) == o for o in found.valid)
    return "read"


@cache
def _holdout_bytes() -> bytes:
    names = ["kernel_a", "kernel_b"]
    return json.dumps({"names": names, "rates": {"d" * 16: [[0, 100.5], [1, 7.25]], "e" * 16: [[1, 3.0]]}}).encode()


def _read_holdout(content: bytes, folder: Path) -> Outcome:
    found = HoldoutProblems.loads(content.decode(errors="surrogateescape"))
    if found is None:
        return "refused"
    assert len(found.digest) == 64
    HoldoutProblems.loads(found.dumps())
    return "read"


READERS = {
    "decision": Reader(_decision_bytes, _read_decision, lines=False),
    "observations": Reader(_observation_bytes, _read_observed, lines=True),
    "holdout": Reader(_holdout_bytes, _read_holdout, lines=False),
}

"""The page of a promotion: it shows the whole decision, fetches nothing, and equal decisions give equal bytes."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from tilewise.gate import HoldoutEfficiencies, Slice, Thresholds, decide_promotion, decision_to_html, parse_decision

MODEL = {
    "content_hash": "c" * 64,
    "data_hash": "d" * 64,
    "git_revision": "a" * 40,
    "label": "residual",
    "pool_size": 110,
}


def decision(candidate: float = 0.8) -> Any:
    problems = [{"M": i, "layout": "r<c"} for i in range(30)]
    ours, theirs = np.full(30, candidate), np.full(30, 0.95)
    holdout = HoldoutEfficiencies(problems, ours, theirs, [Slice("size", "tiny", np.arange(25))])
    gate = decide_promotion(holdout, Thresholds())
    return {
        "target": "gemm_universal_fp8_sm90",
        "outcome": "promoted" if gate.promote else "refused",
        "reasons": list(gate.reasons),
        "notes": ["the pools differ: 2 kernels are new, 0 are gone"],
        "candidate": MODEL,
        "production": {**MODEL, "content_hash": "e" * 64},
        "holdout": {"split_rule": "18% by hash", "noise_ceiling": {"mean_efficiency": 0.998}},
        "gate": gate.to_dict(),
    }


def test_it_shows_the_whole_decision() -> None:
    page = decision_to_html(decision())
    assert "<title>gemm_universal_fp8_sm90: refused</title>" in page
    for text in (
        "80.00 %",
        "95.00 %",
        "-15.00",
        "99.80 %",
        "cccccccccccc",
        "eeeeeeeeeeee",
        "18% by hash",
        "pools differ",
    ):
        assert text in page, text
    assert "size tiny" in page
    assert page.count("<code>M=") == 30, "every regressed problem"


def test_it_is_one_page_without_scripts_or_anything_to_fetch() -> None:
    page = decision_to_html(decision())
    assert not re.search(r"<script|<link|<img|src=|url\(|http", page)
    assert "layout=r&lt;c" in page


def test_equal_decisions_make_equal_pages() -> None:
    assert decision_to_html(decision(0.96)) == decision_to_html(decision(0.96))
    assert "promoted" in decision_to_html(decision(0.96))


def test_a_first_model_and_an_older_decision() -> None:
    gate = decide_promotion(HoldoutEfficiencies([{"M": 1}], np.ones(1), None), Thresholds(floor_mean=90))
    changed: Any = {**decision(0.96), "production": None, "gate": gate.to_dict()}
    first = decision_to_html(changed)
    assert "exceeds the first model&#x27;s floor of 90 %" in first
    assert "<h2>Slices</h2>" not in first
    older: Any = {"target": "t", "outcome": "already_production", "reasons": ["by hand"], "candidate": MODEL}
    assert "in production already" in decision_to_html(older)


@pytest.mark.parametrize(
    "change",
    [
        {"outcome": ["promoted"]},
        {"target": 7},
        {"target": "\ud800"},
        {"reasons": 3},
        {"candidate": "content"},
        {"candidate": {**MODEL, "pool_size": "<script>"}},
        {"gate": {"candidate": {"mean": "0.9"}}},
        {"gate": {"candidate": {"mean": float("nan")}}},
        {"gate": {"checks": [{"name": "mean"}]}},
        {"gate": {"regressed": [0.5]}},
        {"holdout": {"noise_ceiling": [1.0]}},
        {"override": {"reason": "none", "waived": 1}},
    ],
)
def test_a_file_that_is_no_decision_is_not_taken_for_one(change: dict[str, Any]) -> None:
    """The file lies where anybody may edit it, and its page is written again from it."""
    assert parse_decision(json.dumps(decision() | change)) is None


@pytest.mark.parametrize("text", ["", "[" * 3000, '["outcome", "candidate"]', '{"outcome": "promoted"}', "null"])
def test_other_texts_are_no_decisions(text: str) -> None:
    assert parse_decision(text) is None


def test_a_decision_without_some_figures_has_a_page() -> None:
    found = decision()
    del found["production"], found["gate"]["slices"][0]["candidate"]["p10"]
    parsed = parse_decision(json.dumps(found))
    assert parsed is not None
    assert "tiny" in decision_to_html(parsed)

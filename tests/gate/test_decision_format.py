"""The gate's answer as plain data has exactly the keys and figures that ``promotion.json`` promises."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from gate.shadowed import A, B, observed
from tilewise.gate import HoldoutEfficiencies, Slice, Thresholds, check_evidence, decide_promotion, gather_evidence
from tilewise.gate._criteria import selection_time_condition
from tilewise.gate._decision_format import (
    CheckEntry,
    ConditionEntry,
    EvidenceEntry,
    GateEntry,
    ProblemEntry,
    RegressionEntry,
    SliceEntry,
)

PROBLEMS: list[dict[str, Any]] = [{"M": i} for i in range(30)]


def answer(candidate: np.ndarray, production: np.ndarray | None) -> Any:
    slices = [Slice("size", "tiny", np.arange(25))]
    return decide_promotion(HoldoutEfficiencies(PROBLEMS, candidate, production, slices), Thresholds(floor_mean=90))


def test_the_answer_to_a_worse_candidate() -> None:
    decision = answer(np.full(30, 0.75), np.full(30, 0.95))
    entry: Any = decision.to_dict()
    assert entry.keys() == GateEntry.__annotations__.keys()
    assert entry["promote"] is False
    assert entry["reasons"] == list(decision.reasons)
    assert (entry["n_problems"], entry["observed"]) == (30, None)
    assert entry["candidate"]["mean"] == 0.75
    assert entry["production"]["mean"] == 0.95
    assert [c["name"] for c in entry["checks"]] == ["mean", "median", "p10", "problem"]
    assert all(c.keys() == CheckEntry.__annotations__.keys() for c in entry["checks"])
    assert all(s.keys() == SliceEntry.__annotations__.keys() for s in entry["slices"])
    assert entry["regressed"][0].keys() == RegressionEntry.__annotations__.keys()
    assert len(entry["regressed"]) == 30
    assert entry["thresholds"] == json.loads(json.dumps(decision.thresholds.to_dict()))


def test_the_answer_to_a_first_model_has_no_production() -> None:
    entry = answer(np.full(30, 0.95), None).to_dict()
    assert entry["promote"] is True
    assert entry["production"] is None
    assert [c["name"] for c in entry["checks"]] == ["floor_mean"]


def test_thresholds_state_every_limit_on_figures() -> None:
    stated = Thresholds(floor_mean=90).to_dict()
    assert set(stated) == set(Thresholds.__dataclass_fields__) - {"min_problems"}
    assert (stated["floor_mean"], stated["mean_drop"]) == (90, 0.5)


@pytest.mark.parametrize(("ratio", "passed"), [(1.0, True), (2.0, True), (2.001, False)])
def test_the_condition_on_the_time_of_a_selection(ratio: float, passed: bool) -> None:
    entry = selection_time_condition(ratio, 2.0).to_dict()
    relation = "at most" if passed else "more than"
    reason = f"selecting takes {relation} 2 times as long as production's"
    assert entry == {"name": "selection_time", "passed": passed, "reason": reason}
    assert entry.keys() == ConditionEntry.__annotations__.keys()


def test_the_evidence_of_a_shadow() -> None:
    evidence = gather_evidence(observed([0.5] * 30 + [2.0] * 5 + [None] * 5, times=10), B, A)
    check = check_evidence(evidence, Thresholds())
    entry = check.to_dict()
    assert entry.keys() == EvidenceEntry.__annotations__.keys()
    assert (entry["passed"], entry["note"]) == (False, check.note)
    assert (entry["n_problems"], entry["n_differing"], entry["n_observations"]) == (
        40,
        35,
        350,
    )  # without those that agree
    assert (entry["candidate_right"], entry["production_right"]) == (5, 30)
    assert check.speed_up is not None
    assert entry["speed_up"] == [check.speed_up.delta, check.speed_up.low, check.speed_up.high]
    assert len(entry["regressed"]) == 30
    assert entry["regressed"][0].keys() == ProblemEntry.__annotations__.keys()

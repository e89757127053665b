"""The promotion gate: may a candidate model replace the one in production?

Takes efficiencies of both models on the same holdout problems, and shadow observations; gives a decision with reasons.
Pure: it imports neither ``registry`` nor MLflow. Also holds the formats of decisions (``promotion.json``) and
observations (the shadow journal), with their reports. Used by ``registry.promotion``, ``dispatch`` and ``cli``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewise._lazy import lazy_face

if TYPE_CHECKING:
    from tilewise.gate._criteria import HoldoutEfficiencies as HoldoutEfficiencies
    from tilewise.gate._decision_file import DECISION_FILE as DECISION_FILE
    from tilewise.gate._decision_file import DECISION_PAGE as DECISION_PAGE
    from tilewise.gate._decision_file import OUTCOME_FILE as OUTCOME_FILE
    from tilewise.gate._decision_file import decision_to_json as decision_to_json
    from tilewise.gate._decision_file import outcome_to_json as outcome_to_json
    from tilewise.gate._decision_file import parse_decision as parse_decision
    from tilewise.gate._decision_file import read_decision_text as read_decision_text
    from tilewise.gate._decision_file import write_decision_text as write_decision_text
    from tilewise.gate._decision_format import ModelIdentity as ModelIdentity
    from tilewise.gate._decision_format import OverrideEntry as OverrideEntry
    from tilewise.gate._decision_format import PromotionDecision as PromotionDecision
    from tilewise.gate._decision_page import decision_to_html as decision_to_html
    from tilewise.gate._evidence import Evidence as Evidence
    from tilewise.gate._evidence import gather_evidence as gather_evidence
    from tilewise.gate._evidence_check import check_evidence as check_evidence
    from tilewise.gate._evidence_report import build_shadow_report as build_shadow_report
    from tilewise.gate._evidence_report import shadow_report_page as shadow_report_page
    from tilewise.gate._evidence_report import write_shadow_report as write_shadow_report
    from tilewise.gate._gate import GateDecision as GateDecision
    from tilewise.gate._gate import decide_promotion as decide_promotion
    from tilewise.gate._gate import round_figures as round_figures
    from tilewise.gate._observations import Observation as Observation
    from tilewise.gate._observations import Observations as Observations
    from tilewise.gate._observations import Pick as Pick
    from tilewise.gate._observations import read_observations as read_observations
    from tilewise.gate._slice_checks import Slice as Slice
    from tilewise.gate._slice_checks import check_slices as check_slices
    from tilewise.gate._thresholds import SliceRule as SliceRule
    from tilewise.gate._thresholds import Thresholds as Thresholds

__all__, __getattr__ = lazy_face(
    __name__,
    {
        "_criteria": ("HoldoutEfficiencies",),
        "_decision_file": (
            "DECISION_FILE",
            "DECISION_PAGE",
            "OUTCOME_FILE",
            "decision_to_json",
            "outcome_to_json",
            "parse_decision",
            "read_decision_text",
            "write_decision_text",
        ),
        "_decision_format": (
            "ModelIdentity",
            "OverrideEntry",
            "PromotionDecision",
        ),
        "_decision_page": ("decision_to_html",),
        "_evidence": (
            "Evidence",
            "gather_evidence",
        ),
        "_evidence_check": ("check_evidence",),
        "_evidence_report": (
            "build_shadow_report",
            "shadow_report_page",
            "write_shadow_report",
        ),
        "_gate": (
            "GateDecision",
            "decide_promotion",
            "round_figures",
        ),
        "_observations": (
            "Observation",
            "Observations",
            "Pick",
            "read_observations",
        ),
        "_slice_checks": (
            "Slice",
            "check_slices",
        ),
        "_thresholds": (
            "SliceRule",
            "Thresholds",
        ),
    },
)

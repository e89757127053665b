"""The gate's decision: may this candidate replace the model in production?

Pure: efficiencies in, decision out. Both models are judged on the same problems, so each problem is its own control.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar, cast

from tilewise.gate._criteria import (
    Check,
    Condition,
    HoldoutEfficiencies,
    Regression,
    check_drops,
    check_floors,
    check_recorded_drops,
    find_regressions,
    selection_time_condition,
    selftest_condition,
    summarise,
)
from tilewise.gate._decision_format import GateEntry
from tilewise.gate._evidence import Evidence
from tilewise.gate._evidence_check import EvidenceCheck, check_evidence
from tilewise.gate._slice_checks import SliceCheck, check_slices
from tilewise.gate._thresholds import Thresholds

_Json = TypeVar("_Json")
_NOT_WORSE = "not worse than production within the gate's thresholds"
_ABOVE_FLOORS = "first model of this target: it exceeds every floor"


@dataclass(frozen=True)
class GateDecision:
    """The gate's answer with every number behind it.

    Attributes:
        promote: True if the candidate may replace production.
        reasons: The criteria that refuse the candidate or, if it may be promoted, a summary.
        n_problems: Number of holdout problems.
        candidate: ``mean``, ``median``, ``p10`` and ``min`` efficiency.
        production: The same for production; None for the first model of a target.
        checks: The criteria on efficiency.
        conditions: The self-test and the selection time.
        slices: The comparison within each group of problems.
        regressed: Every problem that falls too far, worst first.
        evidence_check: The verdict on shadow observations; None without observations.
        thresholds: The limits applied.
    """

    promote: bool
    reasons: tuple[str, ...]
    n_problems: int
    candidate: Mapping[str, float]
    production: Mapping[str, float] | None
    checks: tuple[Check, ...]
    conditions: tuple[Condition, ...]
    slices: tuple[SliceCheck, ...]
    regressed: tuple[Regression, ...]
    evidence_check: EvidenceCheck | None
    thresholds: Thresholds

    @property
    def weak_slices(self) -> tuple[SliceCheck, ...]:
        """Return the slices that refuse the candidate."""
        return tuple(s for s in self.slices if s.failed)

    def to_dict(self) -> GateEntry:
        """Return plain data for ``promotion.json``.

        The data holds no time and no path, and figures are rounded, so equal decisions give equal text anywhere.
        """
        entry: GateEntry = {
            "promote": self.promote,
            "reasons": list(self.reasons),
            "n_problems": self.n_problems,
            "candidate": dict(self.candidate),
            "production": None if self.production is None else dict(self.production),
            "checks": [c.to_dict() for c in self.checks],
            "conditions": [c.to_dict() for c in self.conditions],
            "slices": [s.to_dict() for s in self.slices],
            "regressed": [r.to_dict() for r in self.regressed],
            "observed": None if self.evidence_check is None else self.evidence_check.to_dict(),
            "thresholds": self.thresholds.to_dict(),
        }
        return round_figures(entry)


def decide_promotion(
    holdout: HoldoutEfficiencies,
    thresholds: Thresholds,
    *,
    selection_time_ratio: float | None = None,
    selftest_error: str | None = None,
    evidence: Evidence | None = None,
) -> GateDecision:
    """Judge the candidate against production, or the first model of a target against the floors.

    Args:
        holdout: The efficiencies of both models.
        thresholds: The limits.
        selection_time_ratio: The candidate's time to select / production's; None if not compared.
        selftest_error: The reason why the registry's copy of the candidate is unsound; None if it is sound.
        evidence: Evidence about both models from shadow observations; None without observations or production.
    """
    candidate, production = holdout.candidate, holdout.production
    conditions = [selftest_condition(selftest_error)]
    if selection_time_ratio is not None:
        conditions.append(selection_time_condition(selection_time_ratio, thresholds.selection_time_factor))
    checks: tuple[Check, ...] = ()
    slices: tuple[SliceCheck, ...] = ()
    regressed: tuple[Regression, ...] = ()
    if not holdout.problems:
        conditions.append(Condition("holdout", False, "there is no holdout problem to judge by"))
    elif production is None:
        checks = check_floors(candidate, thresholds)
    else:
        checks = (
            *check_drops(candidate, production, thresholds),
            *check_recorded_drops(candidate, production, holdout.recorded, thresholds),
        )
        slices = check_slices(holdout.slices, candidate, production, thresholds.drops, thresholds.slices)
        regressed = find_regressions(holdout.problems, candidate, production, thresholds.problem_drop)
    evidence_check = None if evidence is None else check_evidence(evidence, thresholds)
    failed = _failed(checks, slices, conditions, evidence_check)
    return GateDecision(
        promote=not failed,
        reasons=failed or (_ABOVE_FLOORS if production is None else _NOT_WORSE,),
        n_problems=len(holdout.problems),
        candidate=summarise(candidate),
        production=None if production is None else summarise(production),
        checks=checks,
        conditions=tuple(conditions),
        slices=slices,
        regressed=regressed,
        evidence_check=evidence_check,
        thresholds=thresholds,
    )


def _failed(
    checks: tuple[Check, ...],
    slices: tuple[SliceCheck, ...],
    conditions: list[Condition],
    evidence_check: EvidenceCheck | None,
) -> tuple[str, ...]:
    """Return the reason of every failed criterion: a refused candidate needs the whole list at once."""
    return (
        *(c.reason for c in checks if not c.passed),
        *(reason for s in slices for reason in s.reasons),
        *(c.reason for c in conditions if not c.passed),
        *(() if evidence_check is None else evidence_check.reasons),
    )


def round_figures(value: _Json) -> _Json:
    """Round every float in plain data to 10 digits: the order of a vectorised sum depends on the CPU."""
    return cast(_Json, _rounded(value))


def _rounded(value: object) -> object:
    if isinstance(value, dict):
        return {k: _rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_rounded(v) for v in value]
    return round(value, 10) if isinstance(value, float) else value

"""The promotion gate: may this candidate replace the model in production?

Pure: efficiencies in, decision out. Both models are judged on the same problems, in the same order, so each problem
is its own control. Efficiencies are fractions of the oracle in [0, 1]; differences are in points (1 point = 0.01).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tilewise.errors import DataError
from tilewise.evaluate.bootstrap import STATISTICS
from tilewise.registry.observed import Evidence
from tilewise.registry.observed_check import ObservedCheck, check_observed
from tilewise.registry.slices import Slice, SliceCheck, check_slices
from tilewise.registry.thresholds import TOLERANCE_POINTS, Thresholds

_JUDGED = ("mean", "median", "p10")  # of the bootstrap's statistics


@dataclass(frozen=True)
class Check:
    """One criterion on efficiency: the candidate's figure against production's (or a floor), and what was allowed.

    `candidate` and `reference` lie in [0, 1].
    """

    name: str
    candidate: float
    reference: float
    allowed_drop_points: float
    passed: bool
    reason: str

    @property
    def change_points(self) -> float:
        """How far the candidate lies above the reference, in points; negative is worse."""
        return (self.candidate - self.reference) * 100

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {**dataclasses.asdict(self), "change_points": self.change_points}


@dataclass(frozen=True)
class Condition:
    """One criterion that is met or not, without figures in the record: those differ from run to run."""

    name: str
    passed: bool
    reason: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return dataclasses.asdict(self)


@dataclass(frozen=True)
class Regression:
    """A problem whose efficiency falls by more than the gate allows."""

    problem: Mapping[str, Any]
    candidate: float
    production: float

    @property
    def drop_points(self) -> float:
        """How much the candidate loses on this problem, in points."""
        return (self.production - self.candidate) * 100


@dataclass(frozen=True)
class GateDecision:
    """The answer, every number behind it, and every regressed problem, worst first.

    `candidate` and `production` hold ``mean``, ``median``, ``p10`` and ``min`` efficiency; `production` is None for a
    first model. `conditions` are the self-test and the selection time; `observed` is what a shadow saw of both, if one
    did. `reasons` says why not, or, where the answer is yes, what was met.
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
    observed: ObservedCheck | None
    thresholds: Thresholds

    @property
    def weak_slices(self) -> tuple[SliceCheck, ...]:
        """The slices that refuse the candidate."""
        return tuple(s for s in self.slices if s.failed)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for the record: no time, no path, rounded, so that equal decisions give equal text anywhere."""
        plain: dict[str, Any] = rounded(self._plain())
        return plain

    def _plain(self) -> dict[str, Any]:
        return {
            "promote": self.promote,
            "reasons": list(self.reasons),
            "n_problems": self.n_problems,
            "candidate": dict(self.candidate),
            "production": None if self.production is None else dict(self.production),
            "checks": [c.to_dict() for c in self.checks],
            "conditions": [c.to_dict() for c in self.conditions],
            "slices": [s.to_dict() for s in self.slices],
            "regressed": [{**dataclasses.asdict(r), "drop_points": r.drop_points} for r in self.regressed],
            "observed": None if self.observed is None else self.observed.to_dict(),
            "thresholds": self.thresholds.to_dict(),
        }


def decide(
    problems: Sequence[Mapping[str, Any]],
    candidate: NDArray[np.float64],
    production: NDArray[np.float64] | None,
    thresholds: Thresholds,
    *,
    slices: Sequence[Slice] = (),
    selection_time_ratio: float | None = None,
    selftest_error: str | None = None,
    observed: Evidence | None = None,
) -> GateDecision:
    """Judge the candidate against production, or a first model (`production` None) against the floors.

    Args:
        problems: the holdout problems, for the record of those that regress.
        candidate: shape (problems,), efficiency of the candidate's pick for each problem, in [0, 1].
        production: the same for the model in production, or None where there is none.
        thresholds: what is allowed.
        slices: groups of these problems.
        selection_time_ratio: how many times as long as production the candidate takes to select; None: not compared.
        selftest_error: why the files that the registry would serve are refused; None: they are sound.
        observed: what a shadow saw of both models; None: there was none, or there is no production.

    Raises:
        DataError: the two do not cover the problems, or an efficiency is no number in [0, 1].
    """
    _require_efficiencies("candidate", candidate, len(problems))
    if production is not None:
        _require_efficiencies("production", production, len(problems))
    conditions = [_selftest(selftest_error)]
    if selection_time_ratio is not None:
        conditions.append(_selection_time(selection_time_ratio, thresholds.selection_time_factor))
    checks: tuple[Check, ...] = ()
    by_slice: tuple[SliceCheck, ...] = ()
    regressed: tuple[Regression, ...] = ()
    praise = "not worse than production within the gate's thresholds"
    if not problems:
        conditions.append(Condition("holdout", False, "there is no holdout problem to judge by"))
    elif production is None:
        checks = _floor_checks(candidate, thresholds)
        praise = "first model of this target: it exceeds every floor"
    else:
        regressed = _regressions(problems, candidate, production, thresholds)
        checks = (*_drop_checks(candidate, production, thresholds), _problem_check(candidate, production, thresholds))
        by_slice = check_slices(slices, candidate, production, thresholds.drops, thresholds.slices)
    seen = None if observed is None else check_observed(observed, thresholds)
    failed = (
        *(c.reason for c in checks if not c.passed),
        *(reason for s in by_slice for reason in s.reasons),
        *(c.reason for c in conditions if not c.passed),
        *(() if seen is None else seen.reasons),
    )
    return GateDecision(
        promote=not failed,
        reasons=failed or (praise,),
        n_problems=len(problems),
        candidate=_summary(candidate),
        production=None if production is None else _summary(production),
        checks=checks,
        conditions=tuple(conditions),
        slices=by_slice,
        regressed=regressed,
        observed=seen,
        thresholds=thresholds,
    )


def rounded(value: Any) -> Any:
    """The order of a vectorised sum depends on the CPU: 10 digits are the same everywhere, and more than are known."""
    if isinstance(value, dict):
        return {k: rounded(v) for k, v in value.items()}
    if isinstance(value, list):
        return [rounded(v) for v in value]
    return round(value, 10) if isinstance(value, float) else value


def _require_efficiencies(whose: str, values: NDArray[np.float64], n: int) -> None:
    if values.shape != (n,):
        raise DataError(f"{whose}: {n} problems need {n} efficiencies, got an array of shape {values.shape}")
    bad = np.flatnonzero(~((values >= 0) & (values <= 1)))  # the negation also catches NaN
    if bad.size:
        raise DataError(f"{whose}: efficiency must lie in [0, 1], got {values[bad[0]]} for problem {bad[0]}")


def _summary(efficiency: NDArray[np.float64]) -> dict[str, float]:
    if not efficiency.size:
        return {}
    return {name: float(STATISTICS[name](efficiency)) for name in _JUDGED} | {"min": float(np.min(efficiency))}


def _selftest(error: str | None) -> Condition:
    reason = (
        "the registry's copy repeats its self-test" if error is None else f"the registry's copy is refused: {error}"
    )
    return Condition("selftest", error is None, reason)


def _selection_time(ratio: float, factor: float) -> Condition:
    passed = ratio <= factor
    relation = "at most" if passed else "more than"
    return Condition("selection_time", passed, f"selecting takes {relation} {factor:g} times as long as production's")


def _floor_checks(candidate: NDArray[np.float64], thresholds: Thresholds) -> tuple[Check, ...]:
    floors = {"mean": thresholds.floor_mean, "p10": thresholds.floor_p10}
    figures = _summary(candidate)
    checks = []
    for name, floor in floors.items():
        if floor is not None:
            value = figures[name]
            passed = value * 100 > floor
            relation = "exceeds" if passed else "does not exceed"
            reason = f"{name} efficiency {value:.2%} {relation} the first model's floor of {floor:g} %"
            checks.append(Check(f"floor_{name}", value, floor / 100, 0.0, passed, reason))
    return tuple(checks)


def _drop_checks(
    candidate: NDArray[np.float64], production: NDArray[np.float64], thresholds: Thresholds
) -> tuple[Check, ...]:
    of_candidate, of_production = _summary(candidate), _summary(production)
    checks = []
    for name, points in thresholds.drops.items():
        ours, theirs = of_candidate[name], of_production[name]
        drop = (theirs - ours) * 100
        passed = drop <= points + TOLERANCE_POINTS
        reason = (
            f"{name} efficiency {ours:.2%} against production's {theirs:.2%}: "
            f"{abs(drop):.2f} points {'worse' if drop > 0 else 'better'}, {points:g} worse allowed"
        )
        checks.append(Check(name, ours, theirs, points, passed, reason))
    return tuple(checks)


def _problem_check(candidate: NDArray[np.float64], production: NDArray[np.float64], thresholds: Thresholds) -> Check:
    drops = (production - candidate) * 100
    worst = int(np.argmax(drops))
    n = int(np.count_nonzero(drops > thresholds.problem_drop + TOLERANCE_POINTS))
    reason = (
        f"{n} of {len(drops)} problems fall by more than {thresholds.problem_drop:g} points, "
        f"the worst by {max(drops[worst], 0.0):.2f}"
    )
    return Check("problem", float(candidate[worst]), float(production[worst]), thresholds.problem_drop, n == 0, reason)


def _regressions(
    problems: Sequence[Mapping[str, Any]],
    candidate: NDArray[np.float64],
    production: NDArray[np.float64],
    thresholds: Thresholds,
) -> tuple[Regression, ...]:
    limit = thresholds.problem_drop + TOLERANCE_POINTS
    fallen = [
        Regression(problem, float(ours), float(theirs))
        for problem, ours, theirs in zip(problems, candidate, production, strict=True)
        if (theirs - ours) * 100 > limit
    ]
    return tuple(sorted(fallen, key=lambda r: -r.drop_points))

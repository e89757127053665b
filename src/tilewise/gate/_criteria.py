"""The gate's criteria on holdout efficiencies and on the candidate itself.

Efficiencies are fractions of the oracle in [0, 1]. Differences are in points: 1 point is 0.01.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewise.errors import DataError
from tilewise.evaluate import STATISTICS
from tilewise.gate._decision_format import CheckEntry, ConditionEntry, RegressionEntry
from tilewise.gate._slice_checks import Slice
from tilewise.gate._thresholds import TOLERANCE_POINTS, Thresholds
from tilewise.metrics import Floats

_JUDGED = ("mean", "median", "p10")  # of the bootstrap's statistics


@dataclass(frozen=True)
class HoldoutEfficiencies:
    """The efficiencies of both models on the same problems in the same order.

    Attributes:
        problems: The sizes of each holdout problem, to name those that regress.
        candidate: Efficiency of the candidate's pick for each problem, in [0, 1], shape (problems,).
        production: The same for the model in production; None for the first model of a target.
        slices: Groups of these problems.
        recorded: Positions of the problems that production was judged on when it was promoted; None if not known.

    Raises:
        DataError: A model's efficiencies do not cover the problems, or one of them is not in [0, 1].
    """

    problems: Sequence[Mapping[str, object]]
    candidate: Floats
    production: Floats | None
    slices: Sequence[Slice] = ()
    recorded: np.ndarray | None = None

    def __post_init__(self) -> None:
        _require_efficiencies("candidate", self.candidate, len(self.problems))
        if self.production is not None:
            _require_efficiencies("production", self.production, len(self.problems))


@dataclass(frozen=True)
class Check:
    """A criterion on efficiency: the candidate's figure against production's, or against a floor.

    Attributes:
        name: The statistic, ``floor_`` or ``recorded_`` and the statistic, or ``problem``.
        candidate, reference: The figures compared, in [0, 1].
        allowed_drop_points: Points by which the candidate may lie below the reference.
        passed: True if the criterion is met.
        reason: The criterion and its outcome in words.
    """

    name: str
    candidate: float
    reference: float
    allowed_drop_points: float
    passed: bool
    reason: str

    @property
    def change_points(self) -> float:
        """Return the distance of the candidate above the reference, in points; negative is worse."""
        return (self.candidate - self.reference) * 100

    def to_dict(self) -> CheckEntry:
        """Return plain data for JSON."""
        return {
            "name": self.name,
            "candidate": self.candidate,
            "reference": self.reference,
            "allowed_drop_points": self.allowed_drop_points,
            "passed": self.passed,
            "reason": self.reason,
            "change_points": self.change_points,
        }


@dataclass(frozen=True)
class Condition:
    """A yes/no criterion. Its figures vary between runs, so they are not part of the decision."""

    name: str
    passed: bool
    reason: str

    def to_dict(self) -> ConditionEntry:
        """Return plain data for JSON."""
        return {"name": self.name, "passed": self.passed, "reason": self.reason}


@dataclass(frozen=True)
class Regression:
    """A problem whose efficiency falls by more than the gate allows."""

    problem: Mapping[str, object]
    candidate: float
    production: float

    @property
    def drop_points(self) -> float:
        """Return the candidate's loss on this problem, in points."""
        return (self.production - self.candidate) * 100

    def to_dict(self) -> RegressionEntry:
        """Return plain data for JSON."""
        return {
            "problem": dict(self.problem),
            "candidate": self.candidate,
            "production": self.production,
            "drop_points": self.drop_points,
        }


def summarise(efficiency: Floats) -> dict[str, float]:
    """Return ``mean``, ``median``, ``p10`` and ``min``; an empty dict without problems."""
    if not efficiency.size:
        return {}
    return {name: float(STATISTICS[name](efficiency)) for name in _JUDGED} | {"min": float(np.min(efficiency))}


def selftest_condition(error: str | None) -> Condition:
    """Return the condition that the registry's files are sound; `error` is the reason why they are not."""
    reason = (
        "the registry's copy repeats its self-test" if error is None else f"the registry's copy is refused: {error}"
    )
    return Condition("selftest", error is None, reason)


def selection_time_condition(ratio: float, factor: float) -> Condition:
    """Return the condition that the candidate selects at most `factor` times as slowly as production."""
    passed = ratio <= factor
    relation = "at most" if passed else "more than"
    return Condition("selection_time", passed, f"selecting takes {relation} {factor:g} times as long as production's")


def check_floors(candidate: Floats, thresholds: Thresholds) -> tuple[Check, ...]:
    """Check the first model of a target, shape (problems,), against the floors."""
    floors = {"mean": thresholds.floor_mean, "p10": thresholds.floor_p10}
    figures = summarise(candidate)
    checks = []
    for name, floor in floors.items():
        if floor is not None:
            value = figures[name]
            passed = value * 100 > floor
            relation = "exceeds" if passed else "does not exceed"
            reason = f"{name} efficiency {value:.2%} {relation} the first model's floor of {floor:g} %"
            checks.append(Check(f"floor_{name}", value, floor / 100, 0.0, passed, reason))
    return tuple(checks)


def check_drops(candidate: Floats, production: Floats, thresholds: Thresholds) -> tuple[Check, ...]:
    """Check the drop of each statistic, and that of the worst problem. Both arrays have shape (problems,)."""
    statistics = _check_statistics(candidate, production, thresholds)
    return (*statistics, _check_worst_problem(candidate, production, thresholds.problem_drop))


def check_recorded_drops(
    candidate: Floats, production: Floats, recorded: np.ndarray | None, thresholds: Thresholds
) -> tuple[Check, ...]:
    """Check the drops on the problems that production was judged on, if there are others beside them.

    A loss on these problems must not disappear among new problems on which both models are equal.
    """
    if recorded is None or not 0 < len(recorded) < len(candidate):
        return ()
    where = f"on the {len(recorded)} problems that production was judged on, "
    return tuple(
        replace(check, name=f"recorded_{check.name}", reason=where + check.reason)
        for check in _check_statistics(candidate[recorded], production[recorded], thresholds)
    )


def _check_statistics(candidate: Floats, production: Floats, thresholds: Thresholds) -> list[Check]:
    of_candidate, of_production = summarise(candidate), summarise(production)
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
    return checks


def _check_worst_problem(candidate: Floats, production: Floats, allowed: float) -> Check:
    drops = (production - candidate) * 100
    worst = int(np.argmax(drops))
    n = int(np.count_nonzero(drops > allowed + TOLERANCE_POINTS))
    reason = (
        f"{n} of {len(drops)} problems fall by more than {allowed:g} points, the worst by {max(drops[worst], 0.0):.2f}"
    )
    return Check("problem", float(candidate[worst]), float(production[worst]), allowed, n == 0, reason)


def find_regressions(
    problems: Sequence[Mapping[str, object]], candidate: Floats, production: Floats, allowed: float
) -> tuple[Regression, ...]:
    """Return the problems whose efficiency falls by more than `allowed` points, largest fall first."""
    limit = allowed + TOLERANCE_POINTS
    fallen = [
        Regression(problem, float(ours), float(theirs))
        for problem, ours, theirs in zip(problems, candidate, production, strict=True)
        if (theirs - ours) * 100 > limit
    ]
    return tuple(sorted(fallen, key=lambda r: -r.drop_points))


def _require_efficiencies(owner: str, values: Floats, n: int) -> None:
    if values.shape != (n,):
        raise DataError(
            f"{owner}: {n} problems need {n} efficiencies, got an array of shape {values.shape}; "
            "evaluate the model on exactly these problems"
        )
    bad = np.flatnonzero(~((values >= 0) & (values <= 1)))  # the negation also catches NaN
    if bad.size:
        raise DataError(
            f"{owner}: efficiency must lie in [0, 1], got {values[bad[0]]} for problem {bad[0]}; "
            "divide by the oracle of the same rows"
        )

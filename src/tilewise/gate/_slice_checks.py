"""The gate's criterion for groups of problems: no slice may get significantly worse.

A slice refuses a candidate if its mean, median or P10 efficiency falls by more than the threshold with confidence: even
the upper end of the paired bootstrap interval lies beyond the threshold.

There are about a hundred such tests, and slices overlap. At 95 % each, an equal model would nearly always fail some. So
the tests share one error rate (Bonferroni): each gets ``(1 - level) / tests`` of it, one-sided. The bootstrap of 20
skewed differences is overconfident that far in the tail. The allowed drop compensates, so an equal model practically
never fails (tests/gate/test_gate.py simulates this). The price: a small slice refuses only large losses, or losses
shared by many of its problems. A separate criterion limits the loss of every single problem.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from tilewise.evaluate import STATISTICS, paired_bootstrap
from tilewise.gate._decision_format import SliceEntry
from tilewise.gate._thresholds import TOLERANCE_POINTS, SliceRule
from tilewise.metrics import Floats

SEED = 0


@dataclass(frozen=True)
class Slice:
    """A group of problems: a label, its value, and the positions of its problems."""

    label: str
    value: str
    members: np.ndarray


@dataclass(frozen=True)
class SliceCheck:
    """The comparison of both models within one slice.

    Attributes:
        slice, value, n_problems: The group.
        candidate, production: Mean, median and P10 efficiency.
        at_best_points: Upper end of the interval of candidate - production per statistic, in points.
        failed: The statistics that refuse the candidate.
    """

    slice: str
    value: str
    n_problems: int
    candidate: Mapping[str, float]
    production: Mapping[str, float]
    at_best_points: Mapping[str, float]
    failed: tuple[str, ...]

    @property
    def name(self) -> str:
        """Return the group's label and value."""
        return f"{self.slice} {self.value}"

    @property
    def reasons(self) -> list[str]:
        """Return one sentence per statistic that refuses the candidate."""
        return [
            f"{self.name} ({self.n_problems} problems): {name} efficiency {self.candidate[name]:.2%} against "
            f"production's {self.production[name]:.2%}, at best {self.at_best_points[name]:+.2f} points"
            for name in self.failed
        ]

    def to_dict(self) -> SliceEntry:
        """Return plain data for JSON."""
        return {
            "slice": self.slice,
            "value": self.value,
            "n_problems": self.n_problems,
            "candidate": dict(self.candidate),
            "production": dict(self.production),
            "at_best_points": dict(self.at_best_points),
            "failed": list(self.failed),
        }


def check_slices(
    slices: Sequence[Slice], candidate: Floats, production: Floats, drops: Mapping[str, float], rule: SliceRule
) -> tuple[SliceCheck, ...]:
    """Compare the models within each slice of at least ``rule.min_problems`` problems.

    Args:
        slices: Groups of the problems; they may overlap.
        candidate: Efficiencies in [0, 1], shape (problems,).
        production: Efficiencies on the same problems, shape (problems,).
        drops: Points by which each statistic of :data:`tilewise.evaluate.STATISTICS` may fall.
        rule: Confidence level, smallest group and number of resamples.
    """
    judged = [s for s in slices if len(s.members) >= rule.min_problems]
    tests = len(judged) * len(drops)
    return tuple(_check(s, candidate, production, drops, rule, tests) for s in judged)


def _check(
    one: Slice, candidate: Floats, production: Floats, drops: Mapping[str, float], rule: SliceRule, tests: int
) -> SliceCheck:
    ours, theirs = candidate[one.members], production[one.members]
    tail = (1 - rule.level) / tests
    intervals = paired_bootstrap(theirs, ours, n_resamples=rule.n_resamples, level=1 - 2 * tail, seed=SEED)
    at_best = {name: 100 * intervals[name].high for name in drops}
    failed = tuple(name for name, points in drops.items() if at_best[name] < -points - TOLERANCE_POINTS)
    a, b = ({name: float(STATISTICS[name](e)) for name in drops} for e in (ours, theirs))
    return SliceCheck(one.label, one.value, len(one.members), a, b, at_best, failed)

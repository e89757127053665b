"""The gate's criterion for groups of problems: no slice may get worse, as far as its few problems can tell.

A slice refuses a candidate where its mean, median or P10 efficiency falls by more than is allowed for all problems
together, and that is sure: even the upper end of the paired bootstrap's interval lies beyond what is allowed.

There are a hundred such tests, and slices overlap. At 95 % each, an equal model would nearly always fail some. So the
tests share one allowance of error (Bonferroni): each gets ``(1 - level) / tests`` of it, one-sided. The bootstrap of 20
skewed differences is too sure of itself that far out; what is allowed to be lost makes up for it, so that an equal
model practically never fails (tests/registry/test_gate.py tries). The price: a small slice refuses only what is large,
or shared by many of its problems. That no single problem falls far is the business of a criterion of its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewise.evaluate.bootstrap import STATISTICS, paired_bootstrap
from tilewise.metrics import Floats
from tilewise.registry.thresholds import TOLERANCE_POINTS, SliceRule

SEED = 0


@dataclass(frozen=True)
class Slice:
    """A group of problems: a label, its value, and the positions of its problems."""

    label: str
    value: str
    members: np.ndarray


@dataclass(frozen=True)
class SliceCheck:
    """Both models within one slice.

    Attributes:
        slice, value, n_problems: the group.
        candidate, production: mean, median and P10 efficiency.
        at_best_points: upper end of the interval of candidate - production, in points: the candidate may be so good.
        failed: the statistics that refuse the candidate.
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
        """In words."""
        return f"{self.slice} {self.value}"

    @property
    def reasons(self) -> list[str]:
        """Why it refuses, a sentence a statistic."""
        return [
            f"{self.name} ({self.n_problems} problems): {name} efficiency {self.candidate[name]:.2%} against "
            f"production's {self.production[name]:.2%}, at best {self.at_best_points[name]:+.2f} points"
            for name in self.failed
        ]

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
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
        slices: of the problems; they may overlap.
        candidate: (problems,) efficiencies.
        production: (problems,) on the same problems.
        drops: points by which a statistic of :data:`~tilewise.evaluate.bootstrap.STATISTICS` may fall.
        rule: level, smallest size, resamples.
    """
    judged = [s for s in slices if len(s.members) >= rule.min_problems]
    tests = len(judged) * len(drops)
    return tuple(_check(s, candidate, production, drops, rule, tests) for s in judged)


def _check(
    one: Slice, candidate: Floats, production: Floats, drops: Mapping[str, float], rule: SliceRule, tests: int
) -> SliceCheck:
    ours, theirs = candidate[one.members], production[one.members]
    tail = (1 - rule.level) / tests
    found = paired_bootstrap(theirs, ours, n_resamples=rule.n_resamples, level=1 - 2 * tail, seed=SEED)
    failed = tuple(name for name, points in drops.items() if 100 * found[name].high < -points - TOLERANCE_POINTS)
    a, b = ({name: float(STATISTICS[name](e)) for name in drops} for e in (ours, theirs))
    at_best = {name: 100 * found[name].high for name in drops}
    return SliceCheck(one.label, one.value, len(one.members), a, b, at_best, failed)

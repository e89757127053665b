"""The gate's criterion on what a shadow observed, and the roll-back's: is the candidate slower than production?

Two questions, with the gate's own limits and its level of confidence. Over all problems, the candidate has to be shown
not to be slower by more than the mean may fall (non-inferiority: the lower end of the interval counts). And no problem
may be slower by more than a single problem may fall. There a sign test decides, which needs no distribution of the
noise: were it at the limit, half of its observations would lie beyond. All problems share one error (Bonferroni), so a
problem needs at least five observations to refuse anything, and more where many are watched.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb
from typing import Any

from tilewise.evaluate.bootstrap import Interval
from tilewise.registry.observed import Evidence, Seen
from tilewise.registry.thresholds import Thresholds


@dataclass(frozen=True)
class ObservedCheck:
    """What the gate makes of observations.

    Attributes:
        evidence: what was observed.
        speed_up: the candidate's, with its interval; None: too few problems were observed to say.
        regressed: problems that are surely slower than a problem may be, the slowest first.
        reasons: why the candidate is refused; (): it is not.
        surely_worse: whether even the upper end of the interval is below what is allowed, or a problem is.
        note: what was observed, in words.
    """

    evidence: Evidence
    speed_up: Interval | None
    regressed: tuple[Seen, ...]
    reasons: tuple[str, ...]
    surely_worse: bool
    note: str

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        found, candidate, production = self.evidence, *self.evidence.right()[:2]
        interval = self.speed_up
        return {
            "passed": not self.reasons,
            "note": self.note,
            "n_problems": len(found.problems),
            "n_differing": len(found.differing),
            "n_observations": found.observations,
            "candidate_right": candidate,
            "production_right": production,
            "speed_up": None if interval is None else [interval.delta, interval.low, interval.high],
            "regressed": [p.to_dict() for p in self.regressed],
        }


def check_observed(found: Evidence, thresholds: Thresholds) -> ObservedCheck:
    """Judge what was observed.

    Args:
        found: of the candidate against production.
        thresholds: `mean_drop` and `problem_drop` are the limits, in percent of production's speed; the level, the
            smallest number of problems and the resamples are those of the slices.
    """
    rule = thresholds.slices
    reasons, worse, interval = [], False, None
    note = f"{len(found.problems)} problems observed, {len(found.differing)} with two picks"
    if len(found.problems) >= rule.min_problems:
        interval = found.speed_up(2 * rule.level - 1, rule.n_resamples)
        allowed = 1 - thresholds.mean_drop / 100
        note += f": speed-up {interval.delta:.4f} ({interval.low:.4f} to {interval.high:.4f})"
        worse = interval.high < allowed
        if interval.low < allowed:
            reasons.append(f"{note}; it is not shown to be at least {allowed:g}")
    else:
        note += f"; {rule.min_problems} are needed to judge their mean"
    regressed = _regressed(found, 1 - thresholds.problem_drop / 100, 1 - rule.level)
    if regressed:
        least, limit = regressed[0], thresholds.problem_drop
        sizes = " ".join(f"{k}={v}" for k, v in least.problem.to_dict().items())
        reasons.append(
            f"{len(regressed)} observed problems are slower by more than {limit:g} %, the worst with a speed-up of "
            f"{least.speed_up:.3f} in {len(least.speed_ups)} observations: {sizes}"
        )
    return ObservedCheck(found, interval, regressed, tuple(reasons), worse or bool(regressed), note)


def _regressed(found: Evidence, limit: float, error: float) -> tuple[Seen, ...]:
    timed = found.differing
    surely = [p for p in timed if _chance(p, limit) * len(timed) <= error]
    return tuple(sorted(surely, key=lambda p: p.speed_up))


def _chance(seen: Seen, limit: float) -> float:
    """Of so many observations beyond the limit, or more, were the problem's true speed-up at the limit."""
    n, beyond = len(seen.speed_ups), sum(s < limit for s in seen.speed_ups)
    tail: int = sum(comb(n, k) for k in range(beyond, n + 1))
    return tail / (1 << n)

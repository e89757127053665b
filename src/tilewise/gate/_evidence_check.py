"""The criterion of the gate and of the automatic rollback on shadow observations: is the candidate slower?

There are two tests, with the gate's own limits and confidence level:

* Over all problems, non-inferiority: the lower end of the speed-up's interval must not lie below the allowed drop of
  the mean.
* For each problem, a sign test, which assumes no distribution of the noise. If the true speed-up were at the limit,
  half of the observations would lie beyond it. All problems share one error rate (Bonferroni), so a problem needs at
  least five observations to refuse a candidate, and more if many problems are watched.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import comb

from tilewise.evaluate import Interval
from tilewise.gate._decision_format import EvidenceEntry
from tilewise.gate._evidence import Evidence, ProblemEvidence
from tilewise.gate._thresholds import Thresholds


@dataclass(frozen=True)
class EvidenceCheck:
    """The verdict on shadow observations.

    Attributes:
        evidence: The evidence judged.
        speed_up: The candidate's speed-up with its interval; None if too few problems were observed.
        regressed: Problems that are significantly slower than a single problem may be, slowest first.
        reasons: The reasons to refuse the candidate; () if there is no reason.
        surely_worse: True if even the upper end of the interval is below the limit, or a problem regressed.
        note: A summary of the evidence.
    """

    evidence: Evidence
    speed_up: Interval | None
    regressed: tuple[ProblemEvidence, ...]
    reasons: tuple[str, ...]
    surely_worse: bool
    note: str

    def to_dict(self) -> EvidenceEntry:
        """Return plain data for JSON."""
        candidate_right, production_right, _ = self.evidence.count_right()
        interval = self.speed_up
        return {
            "passed": not self.reasons,
            "note": self.note,
            "n_problems": len(self.evidence.problems),
            "n_differing": len(self.evidence.differing),
            "n_observations": self.evidence.n_observations,
            "candidate_right": candidate_right,
            "production_right": production_right,
            "speed_up": None if interval is None else [interval.delta, interval.low, interval.high],
            "regressed": [p.to_dict() for p in self.regressed],
        }


def check_evidence(evidence: Evidence, thresholds: Thresholds) -> EvidenceCheck:
    """Judge the evidence from shadow observations.

    Args:
        evidence: Evidence about the candidate against production.
        thresholds: `mean_drop` and `problem_drop` are the limits, in percent of production's speed. The level, the
            smallest number of problems and the resamples are those of the slices.
    """
    rule = thresholds.slices
    reasons, worse, interval = [], False, None
    note = f"{len(evidence.problems)} problems observed, {len(evidence.differing)} with two picks"
    if len(evidence.problems) >= rule.min_problems:
        interval = evidence.speed_up(2 * rule.level - 1, rule.n_resamples)
        allowed = 1 - thresholds.mean_drop / 100
        note += f": speed-up {interval.delta:.4f} ({interval.low:.4f} to {interval.high:.4f})"
        worse = interval.high < allowed
        if interval.low < allowed:
            reasons.append(f"{note}; it is not shown to be at least {allowed:g}")
    else:
        note += f"; {rule.min_problems} are needed to judge their mean"
    regressed = _regressed(evidence, 1 - thresholds.problem_drop / 100, 1 - rule.level)
    if regressed:
        slowest, limit = regressed[0], thresholds.problem_drop
        sizes = " ".join(f"{k}={v}" for k, v in slowest.problem.to_dict().items())
        reasons.append(
            f"{len(regressed)} observed problems are slower by more than {limit:g} %, the worst with a speed-up of "
            f"{slowest.speed_up:.3f} in {len(slowest.speed_ups)} observations: {sizes}"
        )
    return EvidenceCheck(evidence, interval, regressed, tuple(reasons), worse or bool(regressed), note)


def _regressed(evidence: Evidence, limit: float, error: float) -> tuple[ProblemEvidence, ...]:
    timed = evidence.differing
    significant = [p for p in timed if _p_value(p, limit) * len(timed) <= error]
    return tuple(sorted(significant, key=lambda p: p.speed_up))


def _p_value(problem: ProblemEvidence, limit: float) -> float:
    """Compute the sign test's probability of at least this many observations below `limit` by chance."""
    n, beyond = len(problem.speed_ups), sum(s < limit for s in problem.speed_ups)
    tail: int = sum(comb(n, k) for k in range(beyond, n + 1))
    return tail / (1 << n)

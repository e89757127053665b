"""Evidence from shadow observations about two models: which picks were right, by how much, and how sure that is.

Pure: observations in, figures out. Each problem counts once, by the median of its observations, and counts as equal if
both models pick the same kernel. So the speed-up is that of a problem drawn at random, while GPU time weighs by calls.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewise.evaluate import Interval, paired_bootstrap
from tilewise.gate._decision_format import ProblemEntry
from tilewise.gate._observations import Observation
from tilewise.ops import Problem

CLOSE = 0.01  # differences below this share of the time count as equal


@dataclass(frozen=True)
class ProblemEvidence:
    """All observations of one problem under two models.

    Attributes:
        problem: The problem.
        production, candidate: Names of the picked kernels in the last observation.
        speed_ups: Production's time / the candidate's, one per timed observation; () if nothing was timed.
        calls: Number of calls of the problem.
        ms_per_call: Milliseconds per call with production's kernel.
    """

    problem: Problem
    production: str
    candidate: str
    speed_ups: tuple[float, ...]
    calls: int
    ms_per_call: float

    @property
    def agrees(self) -> bool:
        """Return whether both models pick the same kernel."""
        return self.production == self.candidate

    @property
    def speed_up(self) -> float:
        """Return the candidate's median speed-up: above 1 if it is faster, 1 for the same kernel."""
        return statistics.median(self.speed_ups) if self.speed_ups and not self.agrees else 1.0

    @property
    def saved_ms(self) -> float:
        """Return the GPU time that the calls would save with the candidate, in milliseconds."""
        return self.calls * self.ms_per_call * (1 - 1 / self.speed_up)

    def to_dict(self) -> ProblemEntry:
        """Return plain data for JSON."""
        return {
            "problem": self.problem.stated(),
            "production": self.production,
            "candidate": self.candidate,
            "observations": len(self.speed_ups),
            "speed_up": self.speed_up,
            "calls": self.calls,
            "saved_ms": self.saved_ms,
        }


@dataclass(frozen=True)
class Evidence:
    """The evidence about a candidate against production.

    Attributes:
        problems: Problems that can be judged: both models pick the same kernel, or the picks were timed.
        n_untimed: Number of problems whose picks differ and were not timed (yet).
        errors: The distinct reasons why picks could not be timed.
        n_other_models: Number of observations of other models; they are ignored.
    """

    problems: tuple[ProblemEvidence, ...]
    n_untimed: int
    errors: tuple[str, ...]
    n_other_models: int

    @property
    def differing(self) -> tuple[ProblemEvidence, ...]:
        """Return the problems for which the models pick different kernels."""
        return tuple(p for p in self.problems if not p.agrees)

    @property
    def n_observations(self) -> int:
        """Return the number of timed observations."""
        return sum(len(p.speed_ups) for p in self.differing)

    def count_right(self) -> tuple[int, int, int]:
        """Count the differing problems on which the candidate, production, and neither is faster."""
        ours = sum(p.speed_up > 1 + CLOSE for p in self.differing)
        theirs = sum(p.speed_up < 1 - CLOSE for p in self.differing)
        return ours, theirs, len(self.differing) - ours - theirs

    def speed_up(self, level: float, n_resamples: int) -> Interval:
        """Compute the geometric mean of the speed-up over the problems, with its bootstrap interval.

        Raises:
            ConfigError: There are no problems, or a setting is out of its range.
        """
        logs = np.log([p.speed_up for p in self.problems])
        mean = paired_bootstrap(np.zeros_like(logs), logs, n_resamples=n_resamples, level=level)["mean"]
        return Interval(math.exp(mean.delta), math.exp(mean.low), math.exp(mean.high))

    @property
    def served_ms(self) -> float:
        """Return the GPU time of all calls with production, in milliseconds."""
        return sum(p.calls * p.ms_per_call for p in self.problems)

    @property
    def saved_ms(self) -> float:
        """Return the GPU time that the candidate would save, in milliseconds; negative if it would cost more."""
        return sum(p.saved_ms for p in self.problems)


def gather_evidence(observations: Iterable[Observation], candidate: str, production: str) -> Evidence:
    """Gather the evidence about exactly these two models, whichever of them served.

    Args:
        observations: Observations of any models.
        candidate: Content hash of the judged model.
        production: Content hash of the model that it is compared with.
    """
    by_problem: dict[Problem, list[Observation]] = {}
    n_other_models = 0
    for observation in observations:
        oriented = _oriented(observation, candidate, production)
        if oriented is None:
            n_other_models += 1
        else:
            by_problem.setdefault(oriented.problem, []).append(oriented)
    errors = {o.error: None for group in by_problem.values() for o in group if o.error}
    merged = [_merge(group) for group in by_problem.values()]
    problems = tuple(p for p in merged if p is not None)
    return Evidence(problems, len(merged) - len(problems), tuple(map(str, errors)), n_other_models)


def _oriented(observation: Observation, candidate: str, production: str) -> Observation | None:
    """Return the observation with the models in these roles, or None if it is about other models."""
    models = (observation.candidate.content_hash, observation.production.content_hash)
    if models == (candidate, production):
        return observation
    if models != (production, candidate):
        return None
    ms = observation.ms_a_call
    if observation.production.ms:
        ms *= statistics.median(observation.candidate.ms) / statistics.median(observation.production.ms)
    return replace(observation, candidate=observation.production, production=observation.candidate, ms_a_call=ms)


def _merge(group: Sequence[Observation]) -> ProblemEvidence | None:
    """Merge the observations of one problem; return None if its picks differ and were never timed."""
    kernels = [(o.production.kernel_name, o.candidate.kernel_name) for o in group]
    same_picks = [o for o, pair in zip(group, kernels, strict=True) if pair == kernels[-1]]  # switches change picks
    timed = [o for o in same_picks if o.production.ms]
    if not timed and not same_picks[-1].agrees:
        return None
    ratios = [statistics.median(o.production.ms) / statistics.median(o.candidate.ms) for o in timed]
    ms = statistics.median(o.ms_a_call for o in timed or same_picks)
    return ProblemEvidence(group[0].problem, *kernels[-1], tuple(ratios), sum(o.calls for o in group), ms)

"""What observations of a shadow say about two models: who was right, by how much, and how sure that is.

Pure: observations in, figures out. A problem counts once, by the median of its observations; where both models pick the
same kernel neither gains. So the speed-up is that of a problem drawn at random, while the GPU time weighs calls.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tilewise.evaluate.bootstrap import Interval, paired_bootstrap
from tilewise.ops import Problem
from tilewise.registry.observations import Observation

CLOSE = 0.01  # a difference below this share of the time makes nobody right


@dataclass(frozen=True)
class Seen:
    """One problem under two models.

    Attributes:
        problem: the problem.
        production, candidate: names of the kernels, as observed last.
        speed_ups: production's time / the candidate's, one an observation; () where nothing was timed.
        calls: how often it was asked for.
        ms_a_call: of production's kernel.
    """

    problem: Problem
    production: str
    candidate: str
    speed_ups: tuple[float, ...]
    calls: int
    ms_a_call: float

    @property
    def agrees(self) -> bool:
        """Whether both models pick the same kernel."""
        return self.production == self.candidate

    @property
    def speed_up(self) -> float:
        """The candidate's, above 1 where it is faster; 1 for the same kernel."""
        return statistics.median(self.speed_ups) if self.speed_ups and not self.agrees else 1.0

    @property
    def saved_ms(self) -> float:
        """GPU time that its calls would save with the candidate."""
        return self.calls * self.ms_a_call * (1 - 1 / self.speed_up)

    def to_dict(self) -> dict[str, Any]:
        """Plain data for JSON."""
        return {
            "problem": self.problem.to_dict(),
            "production": self.production,
            "candidate": self.candidate,
            "observations": len(self.speed_ups),
            "speed_up": self.speed_up,
            "calls": self.calls,
            "saved_ms": self.saved_ms,
        }


@dataclass(frozen=True)
class Evidence:
    """All that is known of a candidate against production.

    Attributes:
        problems: those that can be judged: the same kernel, or timed.
        untimed: problems whose picks differ, and were not timed (yet).
        failed: why picks could not be timed, each reason once.
        others: observations of other models, which are left out.
    """

    problems: tuple[Seen, ...]
    untimed: int
    failed: tuple[str, ...]
    others: int

    @property
    def differing(self) -> tuple[Seen, ...]:
        """The problems with two picks."""
        return tuple(p for p in self.problems if not p.agrees)

    @property
    def observations(self) -> int:
        """How often a problem was timed."""
        return sum(len(p.speed_ups) for p in self.differing)

    def right(self) -> tuple[int, int, int]:
        """Problems on which the candidate, production, and neither was right."""
        ours = sum(p.speed_up > 1 + CLOSE for p in self.differing)
        theirs = sum(p.speed_up < 1 - CLOSE for p in self.differing)
        return ours, theirs, len(self.differing) - ours - theirs

    def speed_up(self, level: float, n_resamples: int) -> Interval:
        """Geometric mean over the problems, with its bootstrap interval.

        Raises:
            ConfigError: there are no problems, or a setting is out of its range.
        """
        logs = np.log([p.speed_up for p in self.problems])
        found = paired_bootstrap(np.zeros_like(logs), logs, n_resamples=n_resamples, level=level)["mean"]
        return Interval(math.exp(found.delta), math.exp(found.low), math.exp(found.high))

    @property
    def served_ms(self) -> float:
        """GPU time of all calls, with production."""
        return sum(p.calls * p.ms_a_call for p in self.problems)

    @property
    def saved_ms(self) -> float:
        """GPU time that the candidate would save on them; below 0: it would cost more."""
        return sum(p.saved_ms for p in self.problems)


def evidence(observations: Iterable[Observation], candidate: str, production: str) -> Evidence:
    """What observations say of exactly these two models, whichever of them served.

    Args:
        observations: of any models.
        candidate: content hash of the model that is judged.
        production: content hash of the one that it is compared with.
    """
    by_problem: dict[Problem, list[Observation]] = {}
    others = 0
    for seen in observations:
        turned = _turned(seen, candidate, production)
        if turned is None:
            others += 1
        else:
            by_problem.setdefault(turned.problem, []).append(turned)
    failed = {seen.error: None for group in by_problem.values() for seen in group if seen.error}
    found = [_seen(group) for group in by_problem.values()]
    judged = tuple(p for p in found if p is not None)
    return Evidence(judged, len(found) - len(judged), tuple(map(str, failed)), others)


def _turned(seen: Observation, candidate: str, production: str) -> Observation | None:
    """The observation with the models in these parts; None where it is about others."""
    models = (seen.candidate.content_hash, seen.production.content_hash)
    if models == (candidate, production):
        return seen
    if models != (production, candidate):
        return None
    ms = seen.ms_a_call
    if seen.production.ms:
        ms *= statistics.median(seen.candidate.ms) / statistics.median(seen.production.ms)
    return replace(seen, candidate=seen.production, production=seen.candidate, ms_a_call=ms)


def _seen(group: Sequence[Observation]) -> Seen | None:
    """A problem's observations as one; None where its picks differ and were never timed."""
    kernels = [(o.production.kernel_name, o.candidate.kernel_name) for o in group]
    alike = [o for o, pair in zip(group, kernels, strict=True) if pair == kernels[-1]]  # switches may change a pick
    timed = [o for o in alike if o.production.ms]
    if not timed and not alike[-1].agrees:
        return None
    ratios = [statistics.median(o.production.ms) / statistics.median(o.candidate.ms) for o in timed]
    ms = statistics.median(o.ms_a_call for o in timed or alike)
    return Seen(group[0].problem, *kernels[-1], tuple(ratios), sum(o.calls for o in group), ms)

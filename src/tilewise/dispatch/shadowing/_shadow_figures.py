"""Figures of a shadow for monitoring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tilewise.dispatch.shadowing._pair import Case, Pair


@dataclass(frozen=True)
class ShadowFigures:
    """Findings of a shadow about the present pair of models.

    Attributes:
        content_hash: of the candidate; "" if nothing is compared.
        problems: number of problems by state: ``equal`` selections, ``timed``, ``waiting``, ``failed``.
        regret: share of production's GPU time that the faster selection of each problem would save, weighted by calls,
            in [0, 1]; None before a problem was timed or found equal. Only two kernels of each problem are compared, so
            the true regret may be larger.
        speed_up: production's GPU time / the candidate's on the same calls; None likewise.
        served_s: GPU time of the calls.
        spent_s: GPU time that timing took.
    """

    content_hash: str
    problems: Mapping[str, int]
    regret: float | None
    speed_up: float | None
    served_s: float
    spent_s: float


def shadow_figures(pair: Pair | None, served_ms: float, spent_ms: float) -> ShadowFigures:
    """Return the figures of a pair; None: nothing is compared."""
    problems = dict.fromkeys(("equal", "timed", "waiting", "failed"), 0)
    production = candidate = best = 0.0
    for case in [] if pair is None else list(pair.cases.values()):
        state = _state(case)
        problems[state] += 1
        if state in ("equal", "timed"):
            ours, theirs = case.call_ms, case.candidate_ms if state == "timed" else case.call_ms
            production += case.calls * ours
            candidate += case.calls * theirs
            best += case.calls * min(ours, theirs)
    content_hash = "" if pair is None else pair.candidate.content_hash or ""
    regret, speed_up = (1 - best / production, production / candidate) if production and candidate else (None, None)
    return ShadowFigures(content_hash, problems, regret, speed_up, served_ms / 1e3, spent_ms / 1e3)


def _state(case: Case) -> str:
    if case.error is not None:
        return "failed"
    if case.agrees:
        return "equal"
    return "timed" if case.candidate_ms else "waiting"

"""Observations typed by hand."""

from __future__ import annotations

from collections.abc import Sequence

from synthetic import CONV, problems
from tilewise.gate import Observation, Observations, Pick
from tilewise.ops import Target

A, B, C = "a" * 64, "b" * 64, "c" * 64
SHAPES = problems(Target.parse(CONV), 60)


def observed(
    speed_ups: Sequence[float | None], times: int = 1, *, candidate: str = B, production: str = A, ms: float = 1.0,
    calls: int = 10,
) -> list[Observation]:  # fmt: skip
    """Observe problem `i` `times` times, the candidate being ``speed_ups[i]`` times as fast; None: the same kernel."""
    found = []
    for problem, speed_up in zip(SHAPES, speed_ups, strict=False):
        ours = Pick(production, 1, f"kernel of {production[:6]}", (ms,))
        theirs = Pick(candidate, 2, f"kernel of {candidate[:6]}", (ms / (speed_up or 1),))
        if speed_up is None:
            ours, theirs = Pick(production, 1, "x"), Pick(candidate, 2, "x")
        found += [Observation(CONV, problem, ours, theirs, calls, ms, "GPU", None, "2026-01-01T00:00:00", 7)] * times
    return found


def file_of(*groups: Sequence[Observation]) -> Observations:
    return Observations(tuple(o for group in groups for o in group), 0)

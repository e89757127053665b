"""Pairs of generations that are compared, with a case for each problem.

Swapping either model makes a new pair, and a case belongs to one pair, so no observation mixes models.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Self

from tilewise.dispatch._generation import Generation
from tilewise.dispatch._selection import Selection
from tilewise.dispatch.shadowing._time_budget import NEVER, TimeAccount
from tilewise.gate import Observation, Pick
from tilewise.ops import Problem

if TYPE_CHECKING:
    from tilewise.dispatch.launching import BoundKernel


@dataclass(frozen=True)
class PairTimes:
    """Interleaved times of both kernels.

    Attributes:
        production: times of production's kernel, milliseconds.
        candidate: times of the candidate's kernel, milliseconds.
        cost_ms: GPU time that timing took in total.
    """

    production: tuple[float, ...]
    candidate: tuple[float, ...]
    cost_ms: float


class Case:
    """One problem of a pair.

    Attributes:
        problem: the problem.
        production: production's selection.
        candidate: the candidate's selection; None until it has ranked.
        calls: number of calls in this process.
        reported: number of those calls that the journal contains.
        due: number of calls at which the case is looked at again.
        call_ms: time of a call with production's kernel, predicted or measured.
        candidate_ms: measured time of the candidate's kernel; 0 before.
        cost_ms: expected GPU time of an observation.
        account: GPU time earned and spent by this problem.
        observed: number of observations with times.
        error: why the problem is no longer timed; None while it is.
        bound: the candidate's bound kernel, by device.
    """

    __slots__ = (
        "account", "bound", "call_ms", "calls", "candidate", "candidate_ms", "cost_ms", "due", "error", "observed",
        "problem", "production", "reported",
    )  # fmt: skip

    def __init__(self, problem: Problem, production: Selection) -> None:
        self.problem, self.production = problem, production
        self.candidate: Selection | None = None
        self.calls = self.reported = self.observed = 0
        self.due = NEVER
        self.call_ms = expected_ms(problem, production)
        self.cost_ms = self.candidate_ms = 0.0
        self.account = TimeAccount()
        self.error: str | None = None
        self.bound: dict[int, BoundKernel] = {}

    @property
    def agrees(self) -> bool:
        """Return whether both models select the same kernel."""
        return self.candidate is not None and self.candidate.kernel_name == self.production.kernel_name


class Pair:
    """The generation in production and the one compared with it, with their cases by problem."""

    def __init__(self, production: Generation, candidate: Generation) -> None:
        self.production, self.candidate = production, candidate
        self.cases: dict[Problem, Case] = {}

    @classmethod
    def of(cls, production: Generation | None, candidate: Generation | None) -> Self | None:
        """Return a pair of two different models, or None if a model is missing or both are the same."""
        if production is None or production.model is None or candidate is None:
            return None
        return None if production.content_hash == candidate.content_hash else cls(production, candidate)

    def observation(self, case: Case, times: PairTimes | None, device: str) -> Observation:
        """Build the report of a case and mark its calls as reported."""
        calls, case.reported = case.calls - case.reported, case.calls
        kernel_name = "" if case.candidate is None else case.candidate.kernel_name
        production = _pick(self.production, case.production.kernel_name, times.production if times else ())
        candidate = _pick(self.candidate, kernel_name, times.candidate if times else ())
        now = datetime.now(UTC).isoformat(timespec="microseconds")
        return Observation(
            self.production.target.name, case.problem, production, candidate, calls, case.call_ms, device, case.error,
            now, os.getpid(),
        )  # fmt: skip


def expected_ms(problem: Problem, selection: Selection) -> float:
    """Return the predicted or measured time of a selection's kernel in milliseconds; 0 if neither is known."""
    if selection.predicted_tflops:
        return problem.flops / selection.predicted_tflops / 1e9
    return selection.measured_ms or 0.0


def _pick(generation: Generation, kernel_name: str, ms: tuple[float, ...]) -> Pick:
    content_hash = generation.content_hash
    assert content_hash is not None  # a pair's generations have models
    return Pick(content_hash, generation.version, kernel_name, ms)

"""Two generations side by side, and what is known of each problem: a swap of either makes a new pair.

So that no observation mixes models: whatever a case refers to belongs to the pair that it was made for.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Self

from tilewise.dispatch.budget import NEVER, Account
from tilewise.dispatch.generation import Generation
from tilewise.dispatch.selection import Selection
from tilewise.ops import Problem
from tilewise.registry.observations import Observation, Pick

if TYPE_CHECKING:
    from tilewise.dispatch.bind import Bound


@dataclass(frozen=True)
class Times:
    """Interleaved times of both kernels, milliseconds; `cost_ms` is what taking them cost the GPU, all included."""

    production: tuple[float, ...]
    candidate: tuple[float, ...]
    cost_ms: float


class Case:
    """One problem under one pair.

    Attributes:
        problem: the problem.
        selection: production's.
        rival: the candidate's; None as long as it did not rank.
        calls: so far in this process; `told` of them are in the journal.
        due: number of calls from which on it is looked at again.
        ms: of a call: production's kernel, predicted or measured.
        cost_ms: of an observation, as far as known.
        account: of this problem alone.
        observed: times it was timed.
        error: why it is not timed any more.
        bound: the candidate's kernel, by device.
    """

    __slots__ = (
        "account", "bound", "calls", "cost_ms", "due", "error", "ms", "observed", "problem", "rival", "selection",
        "told",
    )  # fmt: skip

    def __init__(self, problem: Problem, selection: Selection) -> None:
        self.problem, self.selection = problem, selection
        self.rival: Selection | None = None
        self.calls = self.told = self.observed = 0
        self.due = NEVER
        self.ms = milliseconds(problem, selection)
        self.cost_ms = 0.0
        self.account = Account()
        self.error: str | None = None
        self.bound: dict[int, Bound] = {}

    @property
    def agrees(self) -> bool:
        """Whether both models pick the same kernel."""
        return self.rival is not None and self.rival.kernel_name == self.selection.kernel_name


class Pair:
    """Production and the model beside it, with their cases."""

    def __init__(self, production: Generation, candidate: Generation) -> None:
        self.production, self.candidate = production, candidate
        self.cases: dict[Problem, Case] = {}

    @classmethod
    def of(cls, production: Generation | None, candidate: Generation | None) -> Self | None:
        """A pair of two models; None where there are no two."""
        if production is None or production.model is None or candidate is None:
            return None
        return None if production.content_hash == candidate.content_hash else cls(production, candidate)

    def observation(self, case: Case, times: Times | None, device: str) -> Observation:
        """What is to be said of a case now; its calls count as told."""
        calls, case.told = case.calls - case.told, case.calls
        rival = "" if case.rival is None else case.rival.kernel_name
        ours = _pick(self.production, case.selection.kernel_name, times.production if times else ())
        theirs = _pick(self.candidate, rival, times.candidate if times else ())
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        name = self.production.target.name
        return Observation(name, case.problem, ours, theirs, calls, case.ms, device, case.error, now, os.getpid())


def milliseconds(problem: Problem, selection: Selection) -> float:
    """How long a selection's kernel takes, as far as is known; 0: nothing is."""
    if selection.predicted_tflops:
        return problem.flops / selection.predicted_tflops / 1e9
    return selection.measured_ms or 0.0


def _pick(generation: Generation, kernel_name: str, ms: tuple[float, ...]) -> Pick:
    content_hash: Any = generation.content_hash  # a pair's generations have models
    return Pick(content_hash, generation.version, kernel_name, ms)

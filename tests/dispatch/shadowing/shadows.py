"""A shadow without threads or a GPU: made-up times, and calls that launch nothing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilewise.dispatch import Switches
from tilewise.dispatch._generation import Deployment, Generation
from tilewise.dispatch.measuring import GpuMeasurer
from tilewise.dispatch.shadowing import Case, Pair, PairTimes, PendingTimes, Shadow
from tilewise.model import TrainedModel, load_artefact
from tilewise.ops import Problem


class FakeTimer:
    """A timer for which production's kernel takes its predicted time, and the candidate's `ratio` times as long.

    Attributes:
        ratio: see above.
        cost: cost of a timing, relative to the expected cost.
        polls: number of polls before the times are available.
        error: raised by starting.
        asked: the problems that were timed.
        most_over: largest excess of the cost over the reserved time, by problem.
    """

    offline = False
    device = "made up"

    def __init__(self, ratio: float = 2.0, cost: float = 1.0, polls: int = 0, error: Exception | None = None) -> None:
        self.ratio, self.cost, self.polls, self.error = ratio, cost, polls, error
        self.asked: list[Problem] = []
        self.most_over: dict[tuple[Problem, bool], float] = {}

    def prepare(self, pair: Pair, case: Case) -> None:
        pass

    def cost_ms(self, pair: Pair, case: Case) -> float:
        return 8 * case.call_ms

    def start(self, pair: Pair, case: Case, tensors: Sequence[Any], out: Any) -> PendingTimes | None:
        if self.error is not None:
            raise self.error
        self.asked.append(case.problem)
        times = PairTimes((case.call_ms,) * 3, (case.call_ms * self.ratio,) * 3, case.cost_ms * self.cost)
        key = (case.problem, case.observed < 2)
        self.most_over[key] = max(self.most_over.get(key, 0.0), times.cost_ms - case.cost_ms)
        left = self.polls

        def running() -> PairTimes | None:
            nonlocal left
            left -= 1
            return times if left < 0 else None

        return running


def generation_of(model: TrainedModel | Path, version: int = 1) -> Generation:
    model = load_artefact(model) if isinstance(model, Path) else model
    return Generation(Deployment(model.target, model.pool, model, version), Switches(), GpuMeasurer())


def decide(generation: Generation, problem: Problem) -> None:
    """Decide and remember, as a request does."""
    generation.decisions.put(problem, generation.decide(problem).selection)


class Calls:
    """Calls of a shadowed production; the background work is done between them."""

    def __init__(
        self, production: Generation, candidate: Path, journal: Path, timer: FakeTimer, share: float = 0.01
    ) -> None:
        switches = Switches(shadow=str(candidate), shadow_budget=share, shadow_journal=str(journal))
        self.production, self.shadow = production, Shadow(production.target, switches, None, GpuMeasurer())
        self.shadow._timer = timer
        self.shadow.refresh()
        self.shadow.follow(production)

    def __call__(self, problem: Problem, times: int = 1) -> None:
        if problem not in self.production.decisions:
            decide(self.production, problem)
        for _ in range(times):
            self.shadow.on_run(self.production, problem, (), None)
            self.shadow.prepare()

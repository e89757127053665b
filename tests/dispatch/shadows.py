"""A shadow without threads or a GPU: made-up times, calls that were never launched."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tilewise.dispatch import Switches
from tilewise.dispatch.generation import Generation
from tilewise.dispatch.measure import GpuMeasurer
from tilewise.dispatch.pair import Case, Pair, Times
from tilewise.dispatch.shadow import Shadow
from tilewise.dispatch.timers import Running
from tilewise.model.artefact import load_artefact
from tilewise.model.trained import TrainedModel
from tilewise.ops import Problem


class FakeTimer:
    """Production's kernel takes what was predicted, the candidate's `ratio` times as long.

    Attributes:
        ratio: see above.
        cost: of a timing, in times of what it was expected to cost.
        polls: how often the times are not there yet.
        error: what starting raises.
        asked: the problems that were timed.
        most_over: by how much the costs of one problem exceeded what was reserved at the most, by problem.
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
        return 8 * case.ms

    def start(self, pair: Pair, case: Case, tensors: Sequence[Any], out: Any) -> Running | None:
        if self.error is not None:
            raise self.error
        self.asked.append(case.problem)
        times = Times((case.ms,) * 3, (case.ms * self.ratio,) * 3, case.cost_ms * self.cost)
        key = (case.problem, case.observed < 2)
        self.most_over[key] = max(self.most_over.get(key, 0.0), times.cost_ms - case.cost_ms)
        left = self.polls

        def running() -> Times | None:
            nonlocal left
            left -= 1
            return times if left < 0 else None

        return running


def generation_of(model: TrainedModel | Path, version: int = 1) -> Generation:
    model = load_artefact(model) if isinstance(model, Path) else model
    return Generation(model.target, model.pool, model, version, Switches(), GpuMeasurer())


def decide(generation: Generation, problem: Problem) -> None:
    """As a request does."""
    generation.keep(problem, generation.decide(problem))


class Calls:
    """Calls of a production that is shadowed; what the background would do is done in between."""

    def __init__(
        self, production: Generation, candidate: Path, journal: Path, timer: FakeTimer, share: float = 0.01
    ) -> None:
        switches = Switches(shadow=str(candidate), shadow_budget=share, shadow_journal=str(journal))
        self.production, self.shadow = production, Shadow(production.target, switches, None, GpuMeasurer())
        self.shadow._timer = timer
        self.shadow.refresh()
        self.shadow.follow(production)

    def __call__(self, problem: Problem, times: int = 1) -> None:
        if problem not in self.production.known:
            decide(self.production, problem)
        for _ in range(times):
            self.shadow.ran(self.production, problem, (), None)
            self.shadow.prepare()

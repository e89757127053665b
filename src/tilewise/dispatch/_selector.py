"""The part of a dispatcher that answers requests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from time import perf_counter
from typing import TYPE_CHECKING, get_args

from tilewise.dispatch._generation import Generation
from tilewise.dispatch._mapping import MappingKey
from tilewise.dispatch._selection import Selection, Why
from tilewise.dispatch._switches import Switches
from tilewise.errors import KernelError
from tilewise.kernels import EpilogueKind
from tilewise.ops import Problem, Target

if TYPE_CHECKING:
    from tilewise.dispatch.logs import DecisionLog, RequestLog
    from tilewise.dispatch.shadowing import Shadow

ProblemLike = Problem | Mapping[str, object]


class Selector:
    """Selects with the current generation, remembers decisions, and logs decisions and requests.

    Args:
        generation: the generation to start with.
        switches: name the log files.
        shadow: is notified of new decisions.

    Attributes:
        generation: the current generation. Assigning another one swaps the model. Callers read it once per request.
        decisions: number of new problems by who decided; threads add without a lock, so that a few may be lost.
    """

    def __init__(self, generation: Generation, switches: Switches, shadow: Shadow | None) -> None:
        self.generation = generation
        self._shadow = shadow
        self._decision_log = _open_decision_log(switches)
        self._request_log = _open_request_log(switches, generation.target)
        self._warm_up_problems: tuple[Problem, ...] = ()
        self.decisions = dict.fromkeys(get_args(Why), 0)

    @property
    def logs_requests(self) -> bool:
        """Return whether each request has to be logged, remembered or not."""
        return self._request_log is not None

    @property
    def requests(self) -> Mapping[str, int]:
        """Return the number of requests by who answered; empty unless requests are logged."""
        return {} if self._request_log is None else dict(self._request_log.totals)

    def parse(self, problem: ProblemLike) -> Problem:
        """Return a problem of the target's op, given itself or its dimensions, which may state the dtype.

        Raises:
            ProblemError: the problem is impossible, or of another op or dtype; `.field` names the dimension.
        """
        return self.generation.target.problem(problem)

    def select(self, generation: Generation, problem: Problem) -> Selection:
        """Return the selection for a problem, and log the request.

        Raises:
            KernelError: no kernel supports the problem.
        """
        selection = self.decide(generation, problem)
        if self._request_log is not None:
            self._request_log.note(problem, selection.why)
        return selection

    def select_by_mapping(self, generation: Generation, mapping: Mapping[str, object], key: MappingKey) -> Selection:
        """Return the selection for a problem's dict, and remember it under the dict's key.

        Raises:
            ProblemError, KernelError: see :meth:`parse` and :meth:`select`.
        """
        problem, memory = self.parse(mapping), generation.fast_by_mapping  # read before selecting, as in decide
        selection = self.select(generation, problem)
        if generation.decisions.young.get(problem) is selection:  # not if the decision holds only for the moment
            memory.put(key, selection)
        return selection

    def decide(self, generation: Generation, problem: Problem) -> Selection:
        """Return the remembered selection for a problem, or decide, log and remember it.

        Raises:
            KernelError: no kernel supports the problem.
        """
        memory = generation.decisions  # a decision that a measurement overtakes goes into a memory that is dropped
        selection = memory.get(problem)
        if selection is None:
            start = perf_counter()
            decision = generation.decide(problem)
            if self._decision_log is not None:
                self._decision_log.note(generation, problem, decision, perf_counter() - start)
            selection = decision.selection
            if decision.lasting:
                memory.put(problem, selection)
            self.decisions[selection.why] += 1
            if self._shadow is not None:
                self._shadow.on_decision(generation, problem)
        return selection

    def decide_with(self, generation: Generation, problem: Problem, kind: EpilogueKind) -> Selection:
        """Return the selection for a problem with an epilogue, which may be an empty one.

        Raises:
            KernelError: no kernel supports the problem.
        """
        return generation.select_with(problem, kind, self.decide(generation, problem))

    def warm_up_with(self, problems: Iterable[ProblemLike]) -> None:
        """Decide these problems now, and with :meth:`warm_up` for each later generation.

        Raises:
            ProblemError: see :meth:`parse`.
        """
        self._warm_up_problems = tuple(self.parse(p) for p in problems)
        self.warm_up(self.generation)

    def warm_up(self, generation: Generation) -> None:
        """Decide the warm-up problems with a generation before it serves."""
        for problem in self._warm_up_problems:
            with suppress(KernelError):  # raised again when the problem is requested
                self.decide(generation, problem)

    def close(self) -> None:
        """Write the lines that wait for the logs."""
        for log in (self._decision_log, self._request_log):
            if log is not None:
                log.close()


def _open_decision_log(switches: Switches) -> DecisionLog | None:
    if not switches.journal:
        return None
    from tilewise.dispatch.logs import DecisionLog  # most dispatchers have no logs, and should start fast

    return DecisionLog(switches)


def _open_request_log(switches: Switches, target: Target) -> RequestLog | None:
    if not switches.record:
        return None
    from tilewise.dispatch.logs import RequestLog

    return RequestLog(switches.record, target)

"""A dispatcher's life: it serves requests with one generation, looks for a new model, swaps it in, and closes."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from time import perf_counter
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from tilewise.dispatch import forks
from tilewise.dispatch.generation import Generation
from tilewise.dispatch.journal import Journal
from tilewise.dispatch.mapping import fastest_key_of
from tilewise.dispatch.measure import GpuMeasurer, Measurer, RecordedMeasurer
from tilewise.dispatch.origin import Origin
from tilewise.dispatch.record import Record
from tilewise.dispatch.selection import Selection
from tilewise.dispatch.switches import Switches
from tilewise.dispatch.ticker import Ticker
from tilewise.errors import KernelError, ProblemError
from tilewise.kernels.pool import Pool
from tilewise.model.trained import TrainedModel
from tilewise.ops import OPS, Problem, Target

if TYPE_CHECKING:
    from tilewise.dispatch.shadow import Shadow

_log = logging.getLogger(__name__)

Problems = Iterable[Problem | Mapping[str, Any]]


class Service:
    """Serves one target.

    Args:
        target: what it selects for.
        pool: the kernels to choose from.
        model: scores them; None: measurements decide, or the pool's order, default first.
        version: the model's version in the registry, where it came from there.
        switches: what is forced and forbidden; None: what the environment says.
        measurer: measures where that is allowed; None: this machine's GPU.
        warm_up: problems to decide at once, and again for each new model before it serves.
        origin: where new models come from.
        missing: why there is no model.
    """

    def __init__(
        self,
        target: Target,
        pool: Pool,
        model: TrainedModel | None,
        version: int | None = None,
        *,
        switches: Switches | None = None,
        measurer: Measurer | None = None,
        warm_up: Problems = (),
        origin: Origin | None = None,
        missing: str = "there is no model",
    ) -> None:
        self._switches = switches or Switches.read()
        simulate = self._switches.simulate
        self._measurer: Measurer = measurer or (RecordedMeasurer(simulate) if simulate else GpuMeasurer())
        self._journal = Journal(self._switches) if self._switches.journal else None
        self._record = Record(self._switches.record, target) if self._switches.record else None
        self._shadow: Shadow | None = None  # not before it has something to follow
        self._origin = origin
        self._key_of = fastest_key_of()
        self._generation = Generation(target, pool, model, version, self._switches, self._measurer, missing)
        self._warm = tuple(self._problem(p) for p in warm_up)
        self._warm_up(self._generation)
        refresh_s, later = self._switches.refresh_s, self._switches.network == "later"
        self._shadow = _made_shadow(target, pool, self._switches, origin, self._measurer)
        if self._shadow is not None:
            self._shadow.follow(self._generation)
        self._ticker = Ticker(self.refresh, refresh_s, f"tilewise refresh {target.name}")
        self.after_fork()
        forks.register(self)
        if self._may_refresh and (refresh_s or later):
            self._ticker.start(at_once=later)

    def refresh(self) -> bool:
        """Look for a new model in the registry now; whether there was one, which serves from here on.

        A model that is shadowed is looked for as well.

        Requests go on meanwhile. Without a registry (from a folder, from a pool, forbidden) nothing is done.

        Raises:
            UnknownTargetError, RegistryUnavailableError, ArtefactError: there is none, or none that can be had; the
                model that served goes on.
        """
        if self._shadow is not None:
            self._shadow.refresh()
        if not self._may_refresh or self._origin is None:
            return False
        with self._refreshing:
            present = self._generation
            fetched = self._origin.newer(present.content_hash, present.version)
            if fetched is None:
                return False
            model = fetched.model
            fresh = Generation(
                model.target, model.pool, model, fetched.version, self._switches, self._measurer
            )  # fmt: skip
            fresh.before = present.launcher or present.before
            self._warm_up(fresh)
            self._generation = fresh
            if self._shadow is not None:
                self._shadow.follow(fresh)
        _log.info("%s: version %d serves from now on", model.target.name, fetched.version)
        return True

    def close(self) -> None:
        """Stop looking for new models, write what journal, record and shadow hold; selecting goes on working."""
        self._ticker.stop()
        for lines in (self._journal, self._record, self._shadow):
            if lines is not None:
                lines.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def after_fork(self) -> None:
        """In a child: nobody refreshes yet."""
        self._refreshing = threading.Lock()

    @property
    def _may_refresh(self) -> bool:
        switches = self._switches
        return self._origin is not None and switches.network != "off" and switches.model != "off"

    def _warm_up(self, generation: Generation) -> None:
        for problem in self._warm:
            with suppress(KernelError):  # said when it is asked for
                self._decided(generation, problem)

    def _problem(self, problem: Problem | Mapping[str, Any]) -> Problem:
        target = self._generation.target
        kind = OPS[target.op]
        if type(problem) is kind:
            return problem
        if not isinstance(problem, Problem):
            return kind.from_dict(problem)
        if problem.op != target.op:
            raise ProblemError("op", f"a {problem.op} problem, but {target.name} selects for {target.op}")
        return problem

    def _select(self, generation: Generation, problem: Problem) -> Selection:
        selection = self._decided(generation, problem)
        if self._record is not None:
            self._record.note(problem, selection.why)
        return selection

    def _decided(self, generation: Generation, problem: Problem) -> Selection:
        """The decision, now or before."""
        selection = generation.known.get(problem)
        if selection is None:
            begun = perf_counter()
            decision = generation.decide(problem)
            if self._journal is not None:
                self._journal.note(generation, problem, decision, perf_counter() - begun)
            selection = generation.keep(problem, decision)
            if self._shadow is not None:
                self._shadow.decided(generation, problem)
        return selection


def _made_shadow(
    target: Target, pool: Pool, switches: Switches, origin: Origin | None, measurer: Measurer
) -> Shadow | None:
    if switches.shadow == "off" or switches.model == "off":
        return None
    if pool.backend.name != "triton" and not switches.simulate:
        _log.warning("shadow=%s: nothing is compared, only Triton's kernels can be timed here", switches.shadow)
        return None
    from tilewise.dispatch.shadow import Shadow  # seldom needed, and selecting should start fast

    return Shadow(target, switches, origin, measurer)

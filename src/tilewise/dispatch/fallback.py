"""When no model can be relied upon: what was measured before, or measuring now, where that is allowed."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np

from tilewise.arch import load_arch
from tilewise.dispatch.folder import cache_folder
from tilewise.dispatch.measure import Measurer, Work, alone, capturing, outcomes_of
from tilewise.dispatch.measured import FOLDER, Context, Entry, Memory
from tilewise.dispatch.switches import Switches
from tilewise.errors import MeasurementError
from tilewise.kernels.pool import Pool
from tilewise.model.trained import TrainedModel, ranked
from tilewise.ops import Problem, Target

_log = logging.getLogger(__name__)
_MOST_FAILURES = 3  # in a row, after which nothing more is measured: each costs seconds


@dataclass(frozen=True)
class Wanted:
    """Kernels worth measuring, as indices into the pool, and why a model's word is not enough; None: it is missing."""

    kernels: frozenset[int]
    cause: str | None


@dataclass(frozen=True)
class Outcome:
    """What came of measuring.

    Attributes:
        entry: the measurements; None where there are none.
        fresh: measured just now; otherwise by somebody else in the meantime.
        why_not: why there are none.
        lasting: whether it would be the same the next time.
    """

    entry: Entry | None = None
    fresh: bool = False
    why_not: str | None = None
    lasting: bool = True


class Fallback:
    """Measurements of one target's pool on this machine.

    Args:
        target: what is selected for.
        pool: its kernels.
        model: what decides otherwise; None: nothing does.
        switches: what is allowed.
        measurer: what measures.
    """

    def __init__(
        self, target: Target, pool: Pool, model: TrainedModel | None, switches: Switches, measurer: Measurer
    ) -> None:
        self._target, self._pool, self._model = target, pool, model
        self._switches, self._measurer = switches, measurer
        self._root = cache_folder() / FOLDER
        self._failures = 0
        self._looked = False
        self._memory: Memory | None = None  # no cached_property: its lock would not survive a fork

    def known(self, problem: Problem) -> Entry | None:
        """What was measured on this machine, without a look at the disk beyond the first."""
        if not self._looked:
            if self._switches.model != "require" and (self._root / self._target.name).is_dir():
                self._open()
            self._looked = True
        return None if self._memory is None else self._memory.get(problem)

    def _open(self) -> Memory | None:
        """What was measured here; None where this is no machine for the target's kernels."""
        if self._memory is None and (machine := self._measurer.machine(self._target)) is not None:
            self._memory = Memory(self._root, Context.of(self._target, self._pool, machine), len(self._pool))
        return self._memory

    def wanted(self, problem: Problem, supported: Callable[[Problem], np.ndarray]) -> Wanted | None:
        """Which kernels the switches want measured for a problem; None: the model decides.

        Args:
            problem: what is selected for.
            supported: which kernels may be selected: bool, (len(pool),).
        """
        measure = "off" if self._switches.record or self._switches.model == "require" else self._switches.measure
        if measure == "off" or (measure == "missing" and self._model is not None):
            return None
        runnable = np.flatnonzero(supported(problem))
        most = self._switches.measure_top or len(runnable)
        if self._model is None:
            return Wanted(frozenset(runnable[:most].tolist()), None)
        scores = self._model.score(problem)
        cause = "the switch measure=always asks for it"
        if measure != "always":
            trust = self._model.trust(problem, scores) if len(runnable) else None
            if trust is None or (trust.k is not None and (measure == "far" or trust.k == 1)):
                return None
            cause = f"the model cannot be trusted {trust.octaves:.1f} octaves from what it learnt from"
            if trust.k is not None:
                cause, most = f"the best {trust.k} are too close to call", trust.k
        order = ranked(scores)
        return Wanted(frozenset(order[np.isin(order, runnable)][:most].tolist()), cause)

    def measure(self, problem: Problem, kernels: frozenset[int]) -> Outcome:
        """Measure, unless something speaks against it."""
        if capturing():
            return Outcome(why_not="nothing is measured while a CUDA graph is captured", lasting=False)
        memory = self._open()
        if memory is None:
            return Outcome(why_not=f"nothing can be measured: there is no GPU of {self._target.arch} here")
        if self._failures >= _MOST_FAILURES:
            return Outcome(why_not="nothing is measured any more: it failed too often")
        with alone(self._root):
            known = memory.look(problem)
            if known is not None and kernels <= known.tried:
                return Outcome(known)
            every = kernels if known is None else kernels | known.tried
            arch = load_arch(self._target.arch) if self._model is None else self._model.arch
            work = Work(self._target, arch, self._pool, problem, sorted(every))
            try:
                outcomes = outcomes_of(self._measurer, work)
            except MeasurementError as e:
                self._failures += 1
                _log.warning("%s: %s: %s", self._target.name, problem, e)
                return Outcome(why_not=str(e))
            self._failures = 0
            now = datetime.now(UTC).isoformat(timespec="seconds")
            return Outcome(memory.put(problem, outcomes, now), fresh=True)

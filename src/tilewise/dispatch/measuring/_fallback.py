"""Earlier and new measurements, for problems on which no model can be relied upon."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tilewise.arch import load_arch
from tilewise.dispatch._switches import Switches
from tilewise.dispatch.measuring._measure import (
    MeasurementJob,
    Measurer,
    exclusively,
    is_capturing,
    measure_job,
    why_useless,
)
from tilewise.dispatch.sources import MEASURED_FOLDER, cache_folder
from tilewise.errors import MeasurementError
from tilewise.kernels import Pool
from tilewise.model import TrainedModel, ranked
from tilewise.ops import Problem, Target

if TYPE_CHECKING:
    from tilewise.dispatch.measuring._measured_cache import MeasuredCache, MeasuredEntry

_log = logging.getLogger(__name__)
_MAX_FAILURES = 3  # in a row; each costs seconds, so measuring ends after them


class Wish(NamedTuple):
    """The kernels worth measuring for a problem.

    Attributes:
        kernels: indices into the pool.
        cause: why the model's selection does not suffice; None if there is no model.
    """

    kernels: frozenset[int]
    cause: str | None


class MeasurementResult(NamedTuple):
    """The result of an attempt to measure a problem.

    Attributes:
        entry: the measurements; None without any.
        fresh: whether this attempt made them; otherwise another thread or process did meanwhile.
        why_not: why there are no measurements.
        lasting: whether another attempt would end alike.
    """

    entry: MeasuredEntry | None = None
    fresh: bool = False
    why_not: str | None = None
    lasting: bool = True


class Fallback:
    """Measurements of one target's pool on this machine.

    Args:
        target: the target.
        pool: its kernels.
        model: the model that decides otherwise; None without one.
        switches: say when measuring is allowed.
        measurer: measures.
    """

    def __init__(
        self, target: Target, pool: Pool, model: TrainedModel | None, switches: Switches, measurer: Measurer
    ) -> None:
        self._target, self._pool, self._model = target, pool, model
        self._switches, self._measurer = switches, measurer
        self._root = cache_folder() / MEASURED_FOLDER
        self._failures = 0
        self._checked_disk = False
        self._cache: MeasuredCache | None = None  # not a cached_property: its lock would not survive a fork

    def known(self, problem: Problem) -> MeasuredEntry | None:
        """Return earlier measurements of a problem; only the first call reads the disk."""
        if not self._checked_disk:
            if self._switches.model != "require" and (self._root / self._target.name).is_dir():
                self._open()
            self._checked_disk = True
        return None if self._cache is None else self._cache.get(problem)

    def _open(self) -> MeasuredCache | None:
        """Return this machine's measurements, or None if it cannot run the target's kernels."""
        if self._cache is None and (machine := self._measurer.machine(self._target)) is not None:
            from tilewise.dispatch.measuring._measured_cache import MeasuredCache, MeasuredContext  # only used here

            context = MeasuredContext.of(self._target, self._pool, machine)
            self._cache = MeasuredCache(self._root, context, len(self._pool))
        return self._cache

    def wish(self, problem: Problem, supported: Callable[[Problem], np.ndarray]) -> Wish | None:
        """Return the kernels that the switches want measured for a problem, or None if the model decides.

        Args:
            problem: the problem.
            supported: returns which kernels may be selected for a problem: bool, (len(pool),).
        """
        measure = "off" if self._switches.record or self._switches.model == "require" else self._switches.measure
        if measure == "off" or (measure == "missing" and self._model is not None):
            return None
        runnable = np.flatnonzero(supported(problem))
        count = self._switches.measure_top or len(runnable)
        if self._model is None:
            return Wish(frozenset(runnable[:count].tolist()), None)
        scores = self._model.score(problem)
        cause = "the switch measure=always asks for it"
        if measure != "always":
            confidence = self._model.confidence(problem, scores) if len(runnable) else None
            if confidence is None or (confidence.k is not None and (measure == "far" or confidence.k == 1)):
                return None
            distance = confidence.shape_distance
            cause = f"the log2 shape distance to the training set is {distance:.1f}, too far for the calibration"
            if confidence.k is not None:
                cause, count = f"the best {confidence.k} are too close to call", confidence.k
        order = ranked(scores)
        return Wish(frozenset(order[np.isin(order, runnable)][:count].tolist()), cause)

    def measure(self, wanted: Mapping[Problem, frozenset[int]]) -> Mapping[Problem, MeasurementResult]:
        """Measure kernels on problems, with all that were measured before on each, if measuring is possible now."""
        if is_capturing():
            none = MeasurementResult(why_not="nothing is measured while a CUDA graph is captured", lasting=False)
            return dict.fromkeys(wanted, none)
        cache = self._open()
        if cache is None:
            absence = f"nothing can be measured: {self._measurer.absence(self._target)}"
            return dict.fromkeys(wanted, MeasurementResult(why_not=absence))
        if self._failures >= _MAX_FAILURES:
            failed = "nothing is measured any more: it failed too often"
            return dict.fromkeys(wanted, MeasurementResult(why_not=failed))
        with exclusively(self._root):
            results, left = dict[Problem, MeasurementResult](), dict[Problem, Sequence[int]]()
            for problem, kernels in wanted.items():
                known = cache.read(problem)
                if known is not None and kernels <= known.tried:
                    results[problem] = MeasurementResult(known)
                else:
                    left[problem] = sorted(kernels if known is None else kernels | known.tried)
            return {**results, **self._measure_now(cache, left)} if left else results

    def _measure_now(
        self, cache: MeasuredCache, left: Mapping[Problem, Sequence[int]]
    ) -> Mapping[Problem, MeasurementResult]:
        arch = load_arch(self._target.arch) if self._model is None else self._model.arch
        try:
            measured = measure_job(self._measurer, MeasurementJob(self._target, arch, self._pool, left))
        except MeasurementError as e:
            first, *others = left
            return dict.fromkeys(left, self._failure(f"{first} and {len(others)} others" if others else first, str(e)))
        now, results = datetime.now(UTC).isoformat(timespec="seconds"), dict[Problem, MeasurementResult]()
        for problem, outcomes in measured.items():
            if why := why_useless(outcomes):
                results[problem] = self._failure(problem, why)
            else:
                self._failures = 0
                results[problem] = MeasurementResult(cache.put(problem, outcomes, now), fresh=True)
        return results

    def _failure(self, of: Problem | str, why: str) -> MeasurementResult:
        self._failures += 1
        _log.warning("%s: %s: %s", self._target.name, of, why)
        return MeasurementResult(why_not=why)

"""Measurers without a GPU, with made-up times and counted calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from tilewise.collect import Outcome, Samples
from tilewise.dispatch.measuring import Machine, MeasurementJob, Outcomes
from tilewise.errors import MeasurementError
from tilewise.ops import Problem, Target

MACHINE = Machine("GPU", "sm90", "1.0", "2.0", "3.0", "k" * 64)


class FakeMeasurer:
    """A measurer for which kernel `i` of `n` takes ``n - i`` ms; the last is the fastest, and those of `bad` fail.

    Attributes:
        asked: (problem, kernels) of each problem.
        calls: number of calls.
        overlaps: whether two calls ran at the same time.
        ms: milliseconds of a kernel by index, in place of the above.
    """

    def __init__(
        self, machine: Machine | None = MACHINE, bad: frozenset[int] = frozenset(), seconds: float = 0
    ) -> None:
        self._machine, self._bad, self._seconds = machine, bad, seconds
        self._running = threading.Lock()
        self.asked: list[tuple[Problem, tuple[int, ...]]] = []
        self.calls = 0
        self.overlaps = False
        self.ms: dict[int, float] = {}
        self.before: Callable[[], None] = lambda: None

    def machine(self, target: Target) -> Machine | None:
        return self._machine if target.op else None

    def absence(self, target: Target) -> str:
        return f"there is no GPU of {target.arch} here"

    def measure(self, work: MeasurementJob) -> Outcomes:
        if not self._running.acquire(blocking=False):
            self.overlaps = True
            raise MeasurementError("two at once")
        try:
            assert work.arch.name == work.target.arch
            self.asked += [(problem, tuple(kernels)) for problem, kernels in work.kernels.items()]
            self.calls += 1
            self.before()
            time.sleep(self._seconds)
            n = len(work.pool)
            return {problem: {k: self._outcome(k, n) for k in kernels} for problem, kernels in work.kernels.items()}
        finally:
            self._running.release()

    def _outcome(self, kernel: int, n: int) -> Outcome:
        if kernel in self._bad:
            return Outcome("runtime_error", "boom")
        return Outcome("ok", None, Samples((self.ms.get(kernel, float(n - kernel)),), (), 1))

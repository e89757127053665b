"""Hands problems to worker processes, one a device, and replaces a worker that hangs, dies or lost its device.

A kernel that breaks its worker costs one row. Problems are measured optimistically, many kernels at once; one that
breaks its worker with nobody to blame is done again *carefully*, by a fresh worker that announces every kernel before
it runs. The last one announced is noted, and the problem goes on without it.

A device whose workers cannot start is given up; the others go on.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from tilewise.collect.engine import Device, EngineFactory
from tilewise.collect.journal import Journal
from tilewise.collect.plan import Plan
from tilewise.collect.results import Outcome
from tilewise.collect.worker import serve
from tilewise.errors import MeasurementError

START_TIMEOUT_S = 300.0  # for a worker to start, and to prepare a problem
CAREFUL_BATCH_FACTOR = 10.0  # kernels that ran well one by one are timed together within this many kernel timeouts
KERNELS_A_TIMEOUT = 50  # an optimistic batch gets one kernel timeout, and one more for each so many kernels
MAX_STARTS = 3  # workers of a device in a row that never became ready; then it is given up
MAX_LOSSES = 2  # times a problem may break a worker with nobody to blame; after the first it is done carefully
STOP_TIMEOUT_S = 10.0
POLL_S = 0.5


def batch_limit_s(kernel_timeout_s: float, kernels: int, *, careful: bool) -> float:
    """Seconds that kernels run together may take, after ``begin(None)``.

    Optimistically it is short, for a hang is found only when it ends, and running out wrongly costs time alone: the
    problem is done again carefully. Then it is long, for running out costs the rows.
    """
    factor = CAREFUL_BATCH_FACTOR if careful else 1 + kernels / KERNELS_A_TIMEOUT
    return kernel_timeout_s * factor


@dataclass
class _Worker:
    """A worker process and what it is doing."""

    device: int
    process: BaseProcess
    connection: Connection
    limit_s: float
    deadline: float
    about: Device | None = None
    index: int | None = None  # the problem in hand
    kernel: int | None = None  # the kernel begun last; None while nothing or many run


class Coordinator:
    """Runs a plan on some devices; results go to the journal as they come.

    Attributes:
        given_up: why, by device that could not be used.
    """

    def __init__(self, plan: Plan, journal: Journal, factory: EngineFactory, devices: Sequence[int]) -> None:
        self._plan = plan
        self._journal = journal
        self._factory = factory
        self._devices = devices
        self._todo = deque(i for i in range(len(plan.items)) if i not in journal.entries)
        self._losses: Counter[int] = Counter()  # with nobody to blame, by problem
        self._starts: Counter[int] = Counter()  # in a row, by device
        self._workers: list[_Worker] = []
        self._end = float("inf")
        self.given_up: dict[int, str] = {}

    def run(self, progress: Callable[[int, int], None], budget_s: float | None = None) -> None:
        """Measure what the journal does not hold yet.

        Args:
            progress: called with how many problems are done, of how many.
            budget_s: seconds after the first worker is ready in which problems may be begun; None: all are measured.

        Raises:
            MeasurementError: no device can be used.
        """
        total = len(self._plan.items)
        progress(len(self._journal.entries), total)
        if not self._todo or budget_s == 0:
            return
        try:
            while self._to_begin() or any(w.index is not None for w in self._workers):
                self._listen(budget_s)
                progress(len(self._journal.entries), total)
        finally:
            for worker in self._workers:
                _stop(worker, kill=worker.index is not None)

    def _to_begin(self) -> bool:
        return bool(self._todo) and time.monotonic() < self._end

    def _listen(self, budget_s: float | None) -> None:
        """Hear what workers say, replace those that are late, and hand out problems."""
        if not self._workers:
            for device in [d for d in self._devices if d not in self.given_up][: len(self._todo)]:
                self._start(device)
        if not self._workers:
            reasons = "; ".join(f"GPU {device}: {why}" for device, why in self.given_up.items())
            raise MeasurementError(f"no device can be used: {reasons}")
        heard = wait([w.connection for w in self._workers], timeout=POLL_S)
        for worker in [w for w in self._workers if w.connection in heard]:
            self._hear(worker)
        now = time.monotonic()
        for worker in [w for w in self._workers if now > w.deadline and not w.connection.poll()]:
            self._replace(worker, "timeout", f"no answer within {worker.limit_s:g} s")
        if budget_s is not None and self._end == float("inf") and any(w.about for w in self._workers):
            self._end = now + budget_s
        for worker in [w for w in self._workers if w.about and w.index is None]:
            self._give(worker)

    def _start(self, device: int) -> None:
        self._starts[device] += 1
        spawn = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        here, there = spawn.Pipe()
        process = spawn.Process(target=serve, args=(there, self._factory, self._plan, device), daemon=True)
        process.start()
        there.close()
        worker = _Worker(device, process, here, 0.0, 0.0)
        _allow(worker, START_TIMEOUT_S)
        self._workers.append(worker)

    def _hear(self, worker: _Worker) -> None:
        try:
            kind, value = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join(timeout=1)
            self._replace(worker, "runtime_error", f"the worker died (exit code {worker.process.exitcode})")
            return
        handler: Callable[[_Worker, Any], None] = getattr(self, f"_on_{kind}")
        handler(worker, value)

    def _on_ready(self, worker: _Worker, about: Device) -> None:
        worker.about = about
        worker.deadline = float("inf")
        self._starts[worker.device] = 0

    def _on_begin(self, worker: _Worker, kernel: int | None) -> None:
        """Restart the time limit, and know whom to blame.

        Nobody, where it is done optimistically: what was launched earlier may still run, or break the device only now.
        """
        careful = self._careful(worker.index)
        worker.kernel = kernel if careful else None
        limit = self._plan.timing.kernel_timeout_s
        if worker.kernel is None:
            limit = batch_limit_s(limit, len(self._plan.pool), careful=careful)
        _allow(worker, limit)

    def _on_done(self, worker: _Worker, outcomes: list[Outcome]) -> None:
        assert worker.index is not None
        assert worker.about is not None
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._journal.add(worker.index, now, worker.about, outcomes)
        worker.index, worker.deadline = None, float("inf")

    def _on_lost(self, worker: _Worker, text: str) -> None:
        self._replace(worker, "runtime_error", text)

    def _on_failed(self, worker: _Worker, text: str) -> None:
        self._replace(worker, "runtime_error", text)

    def _give(self, worker: _Worker) -> None:
        """Hand over the next problem, or leave the worker idle where there is none."""
        if not self._to_begin():
            return
        index = self._todo.popleft()
        worker.index, worker.kernel = index, None
        _allow(worker, START_TIMEOUT_S)
        with contextlib.suppress(OSError):  # it died while it was idle: hearing from it says so
            worker.connection.send((index, self._known(index), self._careful(index)))

    def _known(self, index: int) -> dict[int, Outcome]:
        """Outcomes of a problem that stand already."""
        return self._plan.left_out(index) | self._journal.known.get(index, {})

    def _careful(self, index: int | None) -> bool:
        return index in self._losses

    def _replace(self, worker: _Worker, status: str, error: str) -> None:
        """Blame the kernel in hand, if there is one, put the problem back and start a fresh worker if it is needed."""
        _stop(worker, kill=True)
        self._workers.remove(worker)
        if worker.index is not None:
            self._blame(worker.index, worker.kernel, Outcome(status, error))
            self._todo.appendleft(worker.index)
        if self._starts[worker.device] >= MAX_STARTS:
            self.given_up[worker.device] = error
            warnings.warn(f"GPU {worker.device} cannot be used: {error}", stacklevel=2)
        elif self._to_begin():
            self._start(worker.device)

    def _blame(self, index: int, kernel: int | None, outcome: Outcome) -> None:
        if kernel is not None:
            self._journal.note(index, {kernel: outcome})
            return
        self._losses[index] += 1
        if self._losses[index] >= MAX_LOSSES:
            known = self._known(index)
            self._journal.note(index, {k: outcome for k in range(len(self._plan.pool)) if k not in known})


def _allow(worker: _Worker, seconds: float) -> None:
    worker.limit_s, worker.deadline = seconds, time.monotonic() + seconds


def _stop(worker: _Worker, *, kill: bool) -> None:
    if kill:
        worker.process.kill()
    else:
        try:
            worker.connection.send(None)
        except OSError:
            worker.process.kill()
    worker.connection.close()
    worker.process.join(timeout=STOP_TIMEOUT_S)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join(timeout=STOP_TIMEOUT_S)  # one that the driver holds on to must not hold up the others

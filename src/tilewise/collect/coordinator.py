"""Hands problems to worker processes, one a device, and replaces a worker that hangs, dies or lost its device.

A kernel that breaks its worker costs one row. Problems are measured optimistically, many kernels at once; one that
breaks its worker with nobody to blame is done again *carefully*, by a fresh worker that announces every kernel before
it runs. The last one announced is noted, and the problem goes on without it.
"""

from __future__ import annotations

import multiprocessing
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
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

START_TIMEOUT_S = 300.0
CAREFUL_BATCH_FACTOR = 10.0  # kernels that ran well one by one are timed together within this many kernel timeouts
KERNELS_A_TIMEOUT = 50  # an optimistic batch gets one kernel timeout, and one more for each so many kernels
MAX_STARTS = 3  # workers of a device in a row that never became ready
MAX_LOSSES = 2  # times a problem may break a worker with nobody to blame; after the first it is done carefully


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
    deadline: float
    about: Device | None = None
    index: int | None = None  # the problem in hand
    kernel: int | None = None  # the kernel begun last; None while nothing or many run


@dataclass
class _Progress:
    """What is known of problems that are not done yet."""

    todo: deque[int]
    known: dict[int, dict[int, Outcome]] = field(default_factory=dict)
    losses: dict[int, int] = field(default_factory=dict)


class Coordinator:
    """Runs a plan on some devices; results go to the journal as they come."""

    def __init__(self, plan: Plan, journal: Journal, factory: EngineFactory, devices: Sequence[int]) -> None:
        self._plan = plan
        self._journal = journal
        self._factory = factory
        self._devices = devices
        self._state = _Progress(deque(i for i in range(len(plan.items)) if i not in journal.entries))
        self._workers: list[_Worker] = []
        self._starts = 0

    def run(self, progress: Callable[[int, int], None]) -> None:
        """Measure all that the journal does not hold yet.

        Raises:
            MeasurementError: workers cannot start, or die again and again without a result.
        """
        total = len(self._plan.items)
        progress(len(self._journal.entries), total)
        if not self._state.todo:
            return
        try:
            self._workers = [self._start(d) for d in self._devices[: len(self._state.todo)]]
            while len(self._journal.entries) < total:
                for ready in wait([w.connection for w in self._workers], timeout=0.5):
                    worker = next(w for w in self._workers if w.connection is ready)
                    self._hear(worker)
                for worker in self._workers:
                    if time.monotonic() > worker.deadline:
                        self._replace(worker, "timeout", "no answer within the time limit")
                progress(len(self._journal.entries), total)
        finally:
            for worker in self._workers:
                _stop(worker)

    def _start(self, device: int) -> _Worker:
        if self._starts >= MAX_STARTS * len(self._devices):
            raise MeasurementError(f"{self._starts} workers in a row died before they were ready to measure")
        self._starts += 1
        spawn = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        here, there = spawn.Pipe()
        process = spawn.Process(target=serve, args=(there, self._factory, self._plan, device), daemon=True)
        process.start()
        there.close()
        return _Worker(device, process, here, time.monotonic() + START_TIMEOUT_S)

    def _hear(self, worker: _Worker) -> None:
        try:
            kind, value = worker.connection.recv()
        except (EOFError, OSError):
            self._replace(worker, "runtime_error", f"the worker died (exit code {worker.process.exitcode})")
            return
        handler: Callable[[_Worker, Any], None] = getattr(self, f"_on_{kind}")
        handler(worker, value)

    def _on_ready(self, worker: _Worker, about: Device) -> None:
        worker.about = about
        self._starts = 0
        self._give(worker)

    def _on_begin(self, worker: _Worker, kernel: int | None) -> None:
        limit = self._plan.timing.kernel_timeout_s
        worker.kernel = kernel
        if kernel is None:
            limit = batch_limit_s(limit, len(self._plan.pool), careful=self._careful(worker.index))
        worker.deadline = time.monotonic() + limit

    def _on_done(self, worker: _Worker, outcomes: list[Outcome]) -> None:
        assert worker.index is not None
        assert worker.about is not None
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._journal.add(worker.index, now, worker.about, outcomes)
        self._give(worker)

    def _on_lost(self, worker: _Worker, text: str) -> None:
        self._replace(worker, "runtime_error", text)

    def _on_failed(self, worker: _Worker, text: str) -> None:
        raise MeasurementError(f"device {worker.device} cannot be used: {text}")

    def _give(self, worker: _Worker) -> None:
        """Hand over the next problem, or leave the worker idle where none is left."""
        if not self._state.todo:
            worker.index, worker.deadline = None, float("inf")
            return
        index = self._state.todo.popleft()
        worker.index, worker.kernel = index, None
        worker.deadline = time.monotonic() + START_TIMEOUT_S
        worker.connection.send((index, self._state.known.get(index, {}), self._careful(index)))

    def _careful(self, index: int | None) -> bool:
        return index in self._state.losses

    def _replace(self, worker: _Worker, status: str, error: str) -> None:
        """Blame the kernel in hand, if there is one, put the problem back and start a fresh worker."""
        _stop(worker, kill=True)
        index = worker.index
        if index is not None:
            known = self._state.known.setdefault(index, {})
            if worker.kernel is not None:
                known[worker.kernel] = Outcome(status, error)
            else:
                self._state.losses[index] = self._state.losses.get(index, 0) + 1
                if self._state.losses[index] >= MAX_LOSSES:
                    known |= {k: Outcome(status, error) for k in range(len(self._plan.pool)) if k not in known}
            self._state.todo.appendleft(index)
        self._workers[self._workers.index(worker)] = self._start(worker.device)


def _stop(worker: _Worker, *, kill: bool = False) -> None:
    if kill:
        worker.process.kill()
    else:
        try:
            worker.connection.send(None)
        except OSError:
            worker.process.kill()
    worker.connection.close()
    worker.process.join(timeout=10)
    if worker.process.is_alive():
        worker.process.kill()
        worker.process.join()

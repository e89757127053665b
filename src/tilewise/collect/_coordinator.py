"""Coordinator of worker processes, one per device: hands out problems and replaces workers that hang, die or fail.

A kernel that breaks its worker costs one row. At first a worker measures many kernels of a problem together. If that
breaks the worker, no kernel can be singled out, so a fresh worker measures the problem *carefully*: it announces every
kernel before it runs. The kernel announced last is noted as broken, and the problem goes on without it.

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
from typing import Any, Self

from tilewise.collect._journal import ProblemLog
from tilewise.collect._outcomes import Outcome
from tilewise.collect._plan import Plan
from tilewise.collect._worker import serve
from tilewise.collect.engines import Device, EngineFactory
from tilewise.errors import MeasurementError

START_TIMEOUT_S = 300.0  # for a worker to start, and to prepare a problem
CAREFUL_BATCH_FACTOR = 10.0  # kernels that ran well one by one are timed together within this many kernel timeouts
KERNELS_PER_TIMEOUT = 50  # a first batch gets one kernel timeout, and another for every so many kernels
MAX_STARTS = 3  # workers of a device that fail to start in a row; then the device is given up
MAX_LOSSES = 2  # times a problem may break a worker without a culprit; after the first it is measured carefully
STOP_TIMEOUT_S = 10.0
POLL_S = 0.5


def batch_limit_s(kernel_timeout_s: float, kernels: int, *, careful: bool) -> float:
    """Return the seconds that kernels may take together, after ``begin(None)``.

    In a first batch the limit is short: a hang is found only when the limit ends, and a limit that ends too early costs
    time alone, as the problem is then measured carefully. In a careful batch the limit is long, for exceeding it costs
    rows.
    """
    factor = CAREFUL_BATCH_FACTOR if careful else 1 + kernels / KERNELS_PER_TIMEOUT
    return kernel_timeout_s * factor


@dataclass
class _Worker:
    """A worker process and its state.

    Attributes:
        limit_s: seconds that its present step may take.
        deadline: monotonic time at which they end.
        description: its device, once it is ready.
        index: the problem that it measures.
        kernel: the kernel announced last; None while none or many run.
    """

    device: int
    process: BaseProcess
    connection: Connection
    limit_s: float
    deadline: float
    description: Device | None = None
    index: int | None = None
    kernel: int | None = None


class Coordinator:
    """Runner of a plan on some devices; use it as a context manager, at whose end the workers stop.

    Attributes:
        unusable: the reason of each device that was given up.
    """

    def __init__(self, plan: Plan, factory: EngineFactory, devices: Sequence[int]) -> None:
        self._plan = plan
        self._factory = factory
        self._devices = devices
        self._todo: deque[int] = deque()
        self._losses: Counter[int] = Counter()  # workers broken without a culprit, by problem
        self._starts: Counter[int] = Counter()  # starts since the last worker that became ready, by device
        self._workers: list[_Worker] = []
        self._end = float("inf")
        self._journal: ProblemLog
        self.unusable: dict[int, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for worker in self._workers:
            _stop(worker, kill=worker.index is not None)
        self._workers = []

    def run(
        self,
        journal: ProblemLog,
        progress: Callable[[int, int], None],
        budget_s: float | None = None,
        problems: Sequence[int] | None = None,
    ) -> None:
        """Measure the problems that the journal does not hold yet; outcomes go to the journal as they arrive.

        Args:
            journal: keeps the measured problems.
            progress: called with the numbers of measured problems and of all problems.
            budget_s: seconds, from the first worker that is ready, in which problems may be begun; None for no limit.
            problems: the problems to measure; None for all of the plan.

        Raises:
            MeasurementError: no device can be used.
        """
        wanted = range(len(self._plan.items)) if problems is None else problems
        self._journal, self._end = journal, float("inf")
        self._todo = deque(i for i in wanted if i not in journal.entries)
        progress(len(journal.entries), len(wanted))
        if not self._todo or budget_s == 0:
            return
        while self._may_begin() or any(w.index is not None for w in self._workers):
            self._step(budget_s)
            progress(len(journal.entries), len(wanted))

    def _may_begin(self) -> bool:
        return bool(self._todo) and time.monotonic() < self._end

    def _step(self, budget_s: float | None) -> None:
        """Handle the workers' messages, replace workers that are late, and hand out problems."""
        if not self._workers:
            for device in [d for d in self._devices if d not in self.unusable][: len(self._todo)]:
                self._start(device)
        if not self._workers:
            reasons = "; ".join(f"GPU {device}: {why}" for device, why in self.unusable.items())
            raise MeasurementError(
                f"no device can be used: {reasons}; measure on a machine with a GPU (collect.devices chooses which), "
                "or import timings by `tilewise ingest`"
            )
        ready = wait([w.connection for w in self._workers], timeout=POLL_S)
        for worker in [w for w in self._workers if w.connection in ready]:
            self._receive(worker)
        now = time.monotonic()
        for worker in [w for w in self._workers if now > w.deadline and not w.connection.poll()]:
            self._replace(worker, "timeout", f"no answer within {worker.limit_s:g} s")
        if budget_s is not None and self._end == float("inf") and any(w.description for w in self._workers):
            self._end = now + budget_s
        for worker in [w for w in self._workers if w.description and w.index is None]:
            self._hand_out(worker)

    def _start(self, device: int) -> None:
        self._starts[device] += 1
        spawn = multiprocessing.get_context("spawn")  # CUDA does not survive a fork
        ours, theirs = spawn.Pipe()
        process = spawn.Process(target=serve, args=(theirs, self._factory, self._plan, device), daemon=True)
        process.start()
        theirs.close()
        worker = _Worker(device, process, ours, 0.0, 0.0)
        _allow(worker, START_TIMEOUT_S)
        self._workers.append(worker)

    def _receive(self, worker: _Worker) -> None:
        try:
            kind, value = worker.connection.recv()
        except (EOFError, OSError):
            worker.process.join(timeout=1)
            self._replace(worker, "runtime_error", f"the worker died (exit code {worker.process.exitcode})")
            return
        handler: Callable[[_Worker, Any], None] = getattr(self, f"_on_{kind}")
        handler(worker, value)

    def _on_ready(self, worker: _Worker, description: Device) -> None:
        worker.description = description
        worker.deadline = float("inf")
        self._starts[worker.device] = 0

    def _on_begin(self, worker: _Worker, kernel: int | None) -> None:
        """Restart the time limit and, in a careful batch, remember the culprit should the worker break now.

        In a first batch there is no culprit: kernels launched earlier may still run, or break the device only now.
        """
        careful = self._is_careful(worker.index)
        worker.kernel = kernel if careful else None
        limit = self._plan.timing.kernel_timeout_s
        if worker.kernel is None:
            limit = batch_limit_s(limit, len(self._plan.pool), careful=careful)
        _allow(worker, limit)

    def _on_done(self, worker: _Worker, outcomes: list[Outcome]) -> None:
        assert worker.index is not None
        assert worker.description is not None
        now = datetime.now(UTC).isoformat(timespec="seconds")
        self._journal.add(worker.index, now, worker.description, outcomes)
        worker.index, worker.deadline = None, float("inf")

    def _on_lost(self, worker: _Worker, text: str) -> None:
        self._replace(worker, "runtime_error", text)

    def _on_failed(self, worker: _Worker, text: str) -> None:
        self._replace(worker, "runtime_error", text)

    def _hand_out(self, worker: _Worker) -> None:
        """Send the next problem to a worker, or leave it idle if no problem may begin."""
        if not self._may_begin():
            return
        index = self._todo.popleft()
        worker.index, worker.kernel = index, None
        _allow(worker, START_TIMEOUT_S)
        with contextlib.suppress(OSError):  # it died while idle, which its pipe will report
            worker.connection.send((index, self._known_outcomes(index), self._is_careful(index)))

    def _known_outcomes(self, index: int) -> dict[int, Outcome]:
        """Return the outcomes, by kernel, that a problem has before it is measured."""
        return self._plan.excluded_outcomes(index) | self._journal.broken.get(index, {})

    def _is_careful(self, index: int | None) -> bool:
        return index in self._losses

    def _replace(self, worker: _Worker, status: str, error: str) -> None:
        """Stop a worker, note its failure, return its problem to the queue, and start another worker if needed."""
        _stop(worker, kill=True)
        self._workers.remove(worker)
        if worker.index is not None:
            self._note_failure(worker.index, worker.kernel, Outcome(status, error))
            self._todo.appendleft(worker.index)
        if self._starts[worker.device] >= MAX_STARTS:
            self.unusable[worker.device] = error
            warnings.warn(f"GPU {worker.device} cannot be used: {error}", stacklevel=2)
        elif self._may_begin():
            self._start(worker.device)

    def _note_failure(self, index: int, kernel: int | None, outcome: Outcome) -> None:
        """Give the outcome to the culprit; without one, to all remaining kernels once MAX_LOSSES workers broke."""
        if kernel is not None:
            self._journal.note_broken(index, {kernel: outcome})
            return
        self._losses[index] += 1
        if self._losses[index] >= MAX_LOSSES:
            known = self._known_outcomes(index)
            self._journal.note_broken(index, {k: outcome for k in range(len(self._plan.pool)) if k not in known})


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
        worker.process.join(timeout=STOP_TIMEOUT_S)  # bounded: the driver may hold on to a process for ever

"""Engines on the hosts: how a worker makes them, and the running ones, kept from shard to shard.

Starting an engine takes seconds (a process, a CUDA context, warm binaries), and a shard lasts about a minute.
"""

from __future__ import annotations

import multiprocessing
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from tilewise.collect._compile_ahead import compile_ahead
from tilewise.collect._coordinator import Coordinator
from tilewise.collect._plan import Plan
from tilewise.collect.engines import EngineFactory, find_plan_kernels, replay_engine
from tilewise.errors import MeasurementError
from tilewise.files import locked

IDLE_S = 20.0  # after which an engine ends; it holds its device's memory until then


class Source(Protocol):
    """Object that makes a plan's engines on a host; it travels there."""

    def factory(self, plan: Plan) -> EngineFactory:
        """Prepare this host, and return the factory of its engines."""


@dataclass(frozen=True)
class GpuSource:
    """Source of engines on GPUs by torch and triton; `jobs` processes compile on each host, None: one per core."""

    jobs: int | None = None

    def factory(self, plan: Plan) -> EngineFactory:
        """Compile the plan's binaries, by the first worker of the host that comes."""
        from tilewise.collect.engines import GpuEngine

        with locked(Path(tempfile.gettempdir()) / f"tilewise-compile-{plan.hash[:16]}.lock"):
            compile_ahead(plan, self.jobs, lambda done, total: None, range(len(plan.items)))
        return GpuEngine


@dataclass(frozen=True)
class LibrarySource:
    """Source of engines over CK Tile's libraries; see :class:`tilewise.collect.CollectTask`."""

    libraries: str | None = None
    memory: str | None = None

    def factory(self, plan: Plan) -> EngineFactory:
        """Find the plan's kernels in the host's libraries."""
        return find_plan_kernels(plan, self.libraries, self.memory).engine(plan)


@dataclass(frozen=True)
class ReplaySource:
    """Source of engines that look measurements up in a table."""

    table: str

    def factory(self, plan: Plan) -> EngineFactory:
        """Return the table's factory."""
        return replay_engine(self.table)


class _Idle(NamedTuple):
    """An engine without work: its plan's hash and source, and the timer that ends it."""

    key: tuple[str, Source]
    coordinator: Coordinator
    timer: threading.Timer


class _Engines:
    """The running engines of this process, at most one for each of its devices. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._idle: dict[int, _Idle] = {}  # by device
        self._busy: set[int] = set()

    @contextmanager
    def one(self, plan: Plan, source: Source) -> Iterator[Coordinator]:
        """Yield an engine's coordinator, alone for the block; an idle one of the plan is taken first."""
        key = (plan.hash, source)
        with self._lock:
            own = [device for device, idle in self._idle.items() if idle.key == key]
            device = own[0] if own else next(d for d in range(len(self._busy) + 1) if d not in self._busy)
            idle = self._idle.pop(device, None)
            self._busy.add(device)
        try:
            if idle:
                idle.timer.cancel()
            if idle and idle.key != key:
                idle.coordinator.__exit__()
                idle = None
            coordinator = idle.coordinator if idle else Coordinator(plan, source.factory(plan), [device])
            try:
                yield coordinator
            except BaseException:
                coordinator.__exit__()
                raise
            self._rest(device, key, coordinator)
        finally:
            with self._lock:
                self._busy.discard(device)

    def _rest(self, device: int, key: tuple[str, Source], coordinator: Coordinator) -> None:
        timer = threading.Timer(IDLE_S, self._end, [device])
        timer.daemon = True
        with self._lock:
            self._idle[device] = _Idle(key, coordinator, timer)
        timer.start()

    def _end(self, device: int) -> None:
        with self._lock:
            idle = self._idle.pop(device, None)
        if idle:
            idle.coordinator.__exit__()


ENGINES = _Engines()


def require_children() -> None:
    """Check that this process may start engines.

    Raises:
        MeasurementError: it is daemonic, as Dask's workers are by default.
    """
    if multiprocessing.current_process().daemon:
        raise MeasurementError(
            "this Dask worker may start no processes; start it with --no-nanny, or with "
            "DASK_DISTRIBUTED__WORKER__DAEMON=False in its environment"
        )

"""A measuring run over many hosts, from a plan to tables: cut into shards, measure, merge."""

from __future__ import annotations

import dataclasses
import re
import time
import uuid
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tilewise.cluster import Executor
from tilewise.collect._journal import JournalEntry
from tilewise.collect._plan import Plan
from tilewise.collect._result_table import measurement_table, write_measurement_table
from tilewise.collect._run import CollectLimits, CollectReport, ProgressCallback, partial_path, require_new
from tilewise.collect.hosts._engines import ENGINES, Source, require_children
from tilewise.collect.hosts._leases import LeaseLostError, complete_mark, take_lease
from tilewise.collect.hosts._shard_log import ShardLog, read_entry
from tilewise.collect.hosts._store import Store, open_store
from tilewise.errors import DataError

_HASH_CHARS = 16  # of the plan, as the name of its part of the storage


@dataclass(frozen=True)
class HostsTask:
    """A plan to measure over hosts.

    Attributes:
        plan: the plan.
        output: the table to write.
        store: folder or URL that all hosts share.
        source: makes the engines.
        shard_size: problems per shard: the unit of work that a worker takes.
        lease_s: seconds without a sign of life after which a shard of an earlier, killed run is taken over.
        limits: how far to go; the budget is wall-clock time from the call.
    """

    plan: Plan
    output: Path
    store: str
    source: Source
    shard_size: int = 16
    lease_s: float = 30.0
    limits: CollectLimits = field(default_factory=CollectLimits)

    @property
    def shards(self) -> list[range]:
        """The problems of each shard: consecutive ones, so that every run of the plan cuts it alike."""
        problems = len(self.plan.items)
        return [range(i, min(i + self.shard_size, problems)) for i in range(0, problems, self.shard_size)]


@dataclass(frozen=True)
class _Session:
    """One call of :func:`collect_on_hosts`, as its workers see it; `end` is in seconds since the epoch."""

    task: HostsTask
    name: str
    end: float | None

    @property
    def mark(self) -> str:
        """Name of the object that exists while the plan is unfinished."""
        return f"sessions/{self.name}"


def collect_on_hosts(task: HostsTask, executor: Executor, progress: ProgressCallback) -> CollectReport:
    """Measure a plan on the GPU workers of an executor, resuming from the shared storage, and write the table.

    If devices of several kinds took part, each kind gets a run and a table of its own, both named after it: times of
    different devices must not be compared within a problem.

    Args:
        task: the plan, and the means for it.
        executor: its workers have GPUs.
        progress: called as shards are measured.

    Raises:
        DataError: an output exists already, or an object of the storage is damaged.
        MeasurementError: no device can be used, or the storage was away for too long.
    """
    require_new(task.output)
    store, limits = _store(task), task.limits
    end = None if limits.budget_s is None else time.time() + limits.budget_s
    done, session = _Count(progress, len(task.plan.items)), _Session(task, uuid.uuid4().hex, end)
    store.create(session.mark, b"")
    executor.map(_measure_shard, session, list(enumerate(task.shards)), done.add, gpu=True)
    require_new(task.output)  # another run of the plan may have finished
    entries = [entry for shard in enumerate(task.shards) for entry in _entries(store, shard, task.plan)]
    complete = len(entries) == len(task.plan.items)
    path = task.output if complete else partial_path(task.output, len(entries), len(task.plan.items))
    written = complete or (limits.partial and bool(entries))
    if written:
        _write_tables(task.plan, entries, path)
    if complete:
        store.delete()
    statuses = sum((entry.by_status for entry in entries), Counter())
    return CollectReport(
        path if written else None, len(task.plan.items), len(entries), dict(sorted(statuses.items())), {}
    )


def _measure_shard(session: _Session, numbered: tuple[int, range]) -> int:
    """Measure the rest of a shard; return the number of its problems that are measured."""
    number, problems = numbered
    task, shard = session.task, _shard(number)
    left_s = None if session.end is None else session.end - time.time()
    if left_s is not None and left_s <= 0:
        return 0
    require_children()
    store = _store(task)
    if store.read(session.mark) is None:
        return 0  # another run of the plan has written the table
    lease = take_lease(store, shard, session.name, task.lease_s)
    if lease is None:
        return len(problems)
    with lease:
        log = ShardLog(task.plan, lease)
        if len(log.entries) < len(problems):
            try:
                with ENGINES.one(task.plan, task.source) as coordinator:
                    coordinator.run(log, lambda done, total: None, left_s, problems)
            except LeaseLostError:
                return 0  # the worker that took the shard over reports it
        if len(log.entries) == len(problems):
            store.create(complete_mark(shard), b"")
    return len(log.entries)


class _Count:
    """Progress over all hosts."""

    def __init__(self, progress: ProgressCallback, total: int) -> None:
        self._progress, self._total, self._done = progress, total, 0
        self.add(0)

    def add(self, problems: int) -> None:
        self._done += problems
        self._progress("measuring problems on all hosts", self._done, self._total)


def _store(task: HostsTask) -> Store:
    return open_store(task.store, task.plan.hash[:_HASH_CHARS])


def _shard(number: int) -> str:
    return f"shard-{number:06d}"


def _entries(store: Store, numbered: tuple[int, range], plan: Plan) -> list[JournalEntry]:
    """Return the measured problems of a shard, each once.

    Raises:
        DataError: an object is damaged, or its problem is not one of the shard or there twice.
    """
    number, problems = numbered
    names = [f"{_shard(number)}/{name}" for name in store.names(_shard(number)) if name.startswith("done-")]
    entries = [read_entry(store, name, plan) for name in names]
    seen = {entry.index for entry in entries}
    if len(seen) < len(entries) or not seen <= set(problems):
        raise DataError(f"{_shard(number)} must hold each of the problems {problems} at most once, got {sorted(seen)}")
    return entries


def _write_tables(plan: Plan, entries: Sequence[JournalEntry], path: Path) -> None:
    """Write one table, or one for each kind of device if there are several."""
    kinds = sorted({entry.device.hw_device for entry in entries})
    if len(kinds) == 1:
        write_measurement_table(measurement_table(plan, entries), path)
        return
    for kind in kinds:
        name = re.sub(r"[^a-z0-9]+", "-", kind.lower()).strip("-")
        own = dataclasses.replace(plan, run_id=f"{plan.run_id}-{name}")
        rows = measurement_table(own, [entry for entry in entries if entry.device.hw_device == kind])
        write_measurement_table(rows, path.with_name(f"{path.stem}-{name}{path.suffix}"))

"""The journal of a shard on shared storage: one object per measured problem, written under a lease.

Two guards keep a problem from being measured twice in a table. A holder whose lease was taken over writes nothing more.
And an object is created exclusively, so that of two writes that race, the first stays.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Mapping, Sequence

from tilewise.collect._journal import (
    JournalEntry,
    broken_line,
    problem_line,
    read_broken_line,
    read_device,
    read_problem_line,
)
from tilewise.collect._outcomes import Outcome
from tilewise.collect._plan import Plan
from tilewise.collect.engines import Device
from tilewise.collect.hosts._leases import Lease
from tilewise.collect.hosts._store import Store
from tilewise.errors import DataError, UsageError


class ShardLog:
    """The measured problems of a shard.

    Attributes:
        entries: the measured problems, by index in the plan.
        broken: outcomes of kernels that broke a worker, by kernel index, by index of a problem not measured yet.

    Args:
        plan: the plan of all shards.
        lease: the right to write to the shard.

    Raises:
        DataError: an object is damaged.
    """

    def __init__(self, plan: Plan, lease: Lease) -> None:
        self._plan = plan
        self._lease = lease
        self.entries: dict[int, JournalEntry] = {}
        self.broken: dict[int, dict[int, Outcome]] = {}
        for name in lease.store.names(lease.shard):
            if name.startswith("done-"):
                entry = read_entry(lease.store, f"{lease.shard}/{name}", plan)
                self.entries[entry.index] = entry
            elif name.startswith("broke-"):
                index, outcomes = read_broken_line(json.loads(lease.store.read(f"{lease.shard}/{name}") or b""), plan)
                self.broken.setdefault(index, {}).update(outcomes)

    def add(self, index: int, measured_at: str, device: Device, outcomes: Sequence[Outcome]) -> None:
        """Keep a measured problem for good; if another worker kept it before, its measurement counts.

        Raises:
            LeaseLostError: another worker took the shard over; nothing is written.
        """
        self._lease.require()
        line = {**problem_line(index, measured_at, outcomes), "device": dataclasses.asdict(device)}
        name = f"{self._lease.shard}/done-{index:08d}"
        self._lease.store.create(name, json.dumps(line, separators=(",", ":")).encode())
        self.entries[index] = read_entry(self._lease.store, name, self._plan)
        self.broken.pop(index, None)

    def note_broken(self, index: int, outcomes: Mapping[int, Outcome]) -> None:
        """Keep kernels that broke a worker, so that no worker tries them on this problem again.

        Raises:
            LeaseLostError: another worker took the shard over; nothing is written.
        """
        self._lease.require()
        name = f"{self._lease.shard}/broke-{index:08d}-{uuid.uuid4().hex}"
        self._lease.store.create(name, json.dumps(broken_line(index, outcomes)).encode())
        self.broken.setdefault(index, {}).update(outcomes)


def read_entry(store: Store, name: str, plan: Plan) -> JournalEntry:
    """Return the measured problem of an object.

    Raises:
        DataError: the object is missing or damaged.
    """
    try:
        values = json.loads(store.read(name) or b"")
        return read_problem_line(values, read_device(values["device"]), plan)
    except (UsageError, ValueError, LookupError, TypeError, AttributeError) as e:
        raise DataError(f"{name}: a damaged object of the shared storage ({e}); remove it to measure again") from e

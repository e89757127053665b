"""Leases of shards: at most one holder may write, and a holder that fell silent is replaced.

A lease is an object ``lease-N``, created exclusively; N counts the holders of the shard. The holder renews it by its
beat, an object that changes. Whoever sees no change for the lease's duration, by a clock of its own, takes lease N+1.
From then on the former holder is fenced: it looks for lease N+1 before each write. No two clocks are compared.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from types import TracebackType
from typing import Self

from tilewise.collect.hosts._store import Store
from tilewise.errors import MeasurementError

_BEATS_PER_LEASE = 3


class LeaseLostError(MeasurementError):
    """Another worker holds the shard now; nothing more may be written to it from here."""


@dataclass
class Lease:
    """The right to write to a shard, renewed in the background while the block lasts.

    Attributes:
        store: the shared storage.
        shard: folder of the shard on it.
        number: count of the shard's holders.
        seconds: duration after which a silent holder is replaced.
    """

    store: Store
    shard: str
    number: int
    seconds: float
    _ended: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Self:
        threading.Thread(target=self._renew, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended.set()

    def require(self) -> None:
        """Check that the lease is still held.

        Raises:
            LeaseLostError: another worker took the shard over.
        """
        own, next_ = (self.store.read(_lease(self.shard, n)) for n in (self.number, self.number + 1))
        if own is None or next_ is not None:  # without its own, the run is over and its objects are deleted
            raise LeaseLostError(f"lease {self.number} of {self.shard} expired, and another worker took the shard over")

    def _renew(self) -> None:
        beat = 0
        while not self._ended.wait(self.seconds / _BEATS_PER_LEASE):
            beat += 1
            self.store.write(_beat(self.shard), f"{self.number} {beat}".encode())


def take_lease(
    store: Store, shard: str, session: str, seconds: float, sleep: Callable[[float], None] = time.sleep
) -> Lease | None:
    """Take the lease of a shard, waiting for its holder to finish or to fall silent.

    Args:
        store: the shared storage.
        shard: folder of the shard on it.
        session: names the run. A holder of the same session is replaced at once: the scheduler gives a shard to a
            second worker only after it lost the first.
        seconds: duration of leases.
        sleep: waits.

    Returns:
        The lease, or None if the shard is complete.
    """
    seen, silent = b"", 0.0
    while store.read(complete_mark(shard)) is None:
        held = [name for name in store.names(shard) if name.startswith("lease-")]
        holder = json.loads(store.read(f"{shard}/{held[-1]}") or b"{}") if held else {}
        beat = f"{held[-1:]} {store.read(_beat(shard))!r}".encode()
        silent = silent + seconds / _BEATS_PER_LEASE if beat == seen else 0.0
        if not held or holder.get("session") == session or silent > seconds:
            number = int(held[-1].partition("-")[2]) + 1 if held else 1
            mine = {"session": session, "host": socket.gethostname(), "process": os.getpid()}
            if store.create(_lease(shard, number), json.dumps(mine).encode()):
                return Lease(store, shard, number, seconds)
            continue
        seen = beat
        sleep(seconds / _BEATS_PER_LEASE)
    return None


def complete_mark(shard: str) -> str:
    """Return the name of the object that says that all problems of a shard are measured."""
    return f"{shard}/complete"


def _lease(shard: str, number: int) -> str:
    return f"{shard}/lease-{number:06d}"


def _beat(shard: str) -> str:
    return f"{shard}/beat"

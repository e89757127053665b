"""Races: processes whose transactions in a registry on SQLite take turns, in an order that a seed gives.

A process waits for its turn before each transaction. The next one is chosen before it asks, so the order depends on no
process's speed, and equal seeds give equal orders. Pauses between two looks at the history pass on a clock that only
transactions move on.
"""

from __future__ import annotations

import os
import random
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from faults.schedule import Fault, fork
from tilewise.registry import _history as history
from tilewise.registry._plain_reader import _File

KINDS = ("order", "order, one killed", "order, one paused")
_PERSISTENCE = (0.0, 0.5, 0.9, 0.98)  # the chance that the same process has the next turn as well
_TURN_S = 0.05  # on the clock of a race
_PAUSES_S = (2.0, 5.0, 50.0)  # shorter and longer than the lease of the history's entries


class Seat:
    """One process's end: within its blocks it asks for turns, and it stands in for the module `time` in the history."""

    def __init__(self, connection: Connection) -> None:
        """Use the connection to the process that gives the turns."""
        self._connection = connection
        self._depth, self._now = -1, 0.0
        self._lock = threading.RLock()  # a dispatcher fetches in a thread

    def __enter__(self) -> None:
        """Ask for turns from now on."""
        self._depth = 0

    def __exit__(self, *_: object) -> None:
        """Ask for turns no longer."""
        self._depth = -1

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Wait for a turn, which lasts until the end of the block; a block inside another one is part of it."""
        if self._depth < 0:
            yield
            return
        with self._lock:
            if self._depth == 0:
                self._ask(None)
            self._depth += 1
            try:
                yield
            finally:
                self._depth -= 1
                if self._depth == 0:
                    self._connection.send(None)

    def sleep(self, seconds: float) -> None:
        """Wait until so many seconds have passed in the race."""
        self._ask(seconds)

    def monotonic(self) -> float:
        """Return the seconds of the race that had passed at the last turn."""
        return self._now

    def _ask(self, seconds: float | None) -> None:
        try:
            self._connection.send(seconds)
            self._now = self._connection.recv()
        except (EOFError, OSError):  # the race was ended
            os._exit(1)

    def take(self) -> None:
        """Make each later transaction of this process a turn, and each pause in the history one of the race."""
        from mlflow.store.db import utils
        from mlflow.store.model_registry import sqlalchemy_store

        of_mlflow: Callable[..., Callable[..., Any]] = vars(utils)["_get_managed_session_maker"]
        rows = _File._rows

        def maker(*args: Any) -> Callable[..., Any]:
            open_session = of_mlflow(*args)

            @contextmanager
            def session(*args: Any, **values: Any) -> Iterator[Any]:
                with self.turn(), open_session(*args, **values) as opened:
                    yield opened

            return session

        def read(reader: _File, query: str, *values: object) -> Any:
            with self.turn():
                return rows(reader, query, *values)

        for module in (utils, sqlalchemy_store):
            setattr(module, "_get_managed_session_maker", maker)  # noqa: B010  (no name that the module exports)
        setattr(_File, "_rows", read)  # noqa: B010  (a method)
        setattr(history, "time", self)  # noqa: B010  (no name that the module exports)


@dataclass(eq=False)
class _Runner:
    """A process of a race, as the one that gives the turns sees it."""

    number: int
    process: int
    connection: Connection
    is_asleep: bool = False
    wakes_s: float = 0.0

    def go_on(self, now: float) -> float:
        """Let it have its turn, or fall asleep if it asks for that; return the time afterwards.

        Raises:
            EOFError, OSError: It has ended.
        """
        if self.is_asleep:
            self.connection.send(now)
        seconds: float | None = self.connection.recv()
        self.is_asleep = seconds is not None
        if seconds is not None:
            self.wakes_s = now + seconds
            return now
        self.connection.send(now)
        self.connection.recv()  # the end of its turn
        return now + _TURN_S


class Turns:
    """The injector: the order in which processes go on, and one of them that is killed or paused.

    Attributes:
        order: of the last race: the number of each process that went on, fell asleep or was hit.
    """

    def __init__(self) -> None:
        """Begin without a fault: then the first process that is not asleep goes on."""
        self._fault: Fault | None = None
        self.order: list[int] = []

    def draw(self, rng: random.Random, steps: int) -> Fault:
        """Choose a kind, a step, and the seed of an order."""
        return Fault(rng.choice(KINDS), rng.randint(1, max(1, steps)), rng.randrange(1 << 30))

    def arm(self, folder: Path, fault: Fault | None) -> None:
        """Let the next race of this process have the order of a fault."""
        self._fault, self.order = fault, []

    def steps(self) -> int:
        """Return the number of steps of the race."""
        return len(self.order)

    def calm(self) -> None:
        """Need nothing: these faults end with the race."""

    def race(self, works: Sequence[Callable[[Seat], None]]) -> list[int]:
        """Run each work in a process of its own; return their exit statuses."""
        rng = random.Random(None if self._fault is None else self._fault.size)
        persistence, pause_s = rng.choice(_PERSISTENCE), rng.choice(_PAUSES_S)
        running, ended = _begin(works), [0] * len(works)
        now, last = 0.0, running[0]
        while running:
            now = max(now, min(r.wakes_s for r in running))
            awake = [r for r in running if r.wakes_s <= now]
            if self._fault is None:
                last = awake[0]
            elif last not in awake or rng.random() >= persistence:
                last = rng.choice(awake)
            self.order.append(last.number)
            if self._hits("one paused"):
                last.wakes_s = now + pause_s
                continue
            if self._hits("one killed"):
                last.connection.poll(None)  # it waits for its turn, or has ended
                os.kill(last.process, signal.SIGKILL)
            try:
                now = last.go_on(now)
            except (EOFError, OSError):
                running.remove(last)
                ended[last.number] = os.waitstatus_to_exitcode(os.waitpid(last.process, 0)[1])
        return ended

    def _hits(self, kind: str) -> bool:
        return self._fault is not None and self._fault.at == len(self.order) and self._fault.kind.endswith(kind)


def _begin(works: Sequence[Callable[[Seat], None]]) -> list[_Runner]:
    runners: list[_Runner] = []
    for number, work in enumerate(works):
        near, far = Pipe()

        def run(work: Callable[[Seat], None] = work, near: Connection = near, far: Connection = far) -> None:
            for connection in (near, *(r.connection for r in runners)):
                connection.close()  # else this process would not see that the race was ended
            work(Seat(far))

        runners.append(_Runner(number, fork(run), near))
        far.close()
    return runners

"""Shorter turns of threads, so that background work goes on beside threads that compute all the time.

After each read of a socket or a database a thread waits until every busy thread has had its turn, 5 ms each by
default. A call of a thousand reads beside 32 busy threads would take minutes.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from tilewise.dispatch.background._forks import register_after_fork

TURN_S = 1e-4


class _Turns:
    """The interpreter's switch interval, shortened while any block needs it."""

    def __init__(self) -> None:
        self._blocks, self._before = 0, sys.getswitchinterval()
        self.after_fork()
        register_after_fork(self)

    def after_fork(self) -> None:
        """Restore the interval in a forked child, in which the threads of the blocks do not exist."""
        self._lock = threading.Lock()
        if self._blocks:
            self._blocks = 0
            sys.setswitchinterval(self._before)

    def enter(self) -> None:
        """Shorten the interval if this is the first block."""
        with self._lock:
            self._blocks += 1
            if self._blocks == 1:
                self._before = sys.getswitchinterval()
                sys.setswitchinterval(min(self._before, TURN_S))

    def leave(self) -> None:
        """Restore the interval after the last block, unless the application has set another one meanwhile."""
        with self._lock:
            self._blocks -= 1
            if self._blocks == 0 and sys.getswitchinterval() <= TURN_S:
                sys.setswitchinterval(self._before)


_turns = _Turns()


@contextmanager
def short_turns() -> Iterator[None]:
    """Let threads take short turns for the duration of the block; blocks of several threads may overlap."""
    _turns.enter()
    try:
        yield
    finally:
        _turns.leave()

"""After a fork, locks that another thread held, threads that are gone and queues of the parent are made anew.

And at the end of a process, what waits in the background is finished. What registers here may still be collected.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import Protocol
from weakref import WeakMethod, WeakSet


class Forkable(Protocol):
    """Something with state that must not be shared with a forked child."""

    def after_fork(self) -> None:
        """Called in the child, before anything else runs there."""


_all: WeakSet[Forkable] = WeakSet()  # one hook for them all, as hooks cannot be taken back


def register(thing: Forkable) -> None:
    """Call ``thing.after_fork()`` in forked children, as long as `thing` lives."""
    _all.add(thing)


def at_exit(method: Callable[[], object]) -> None:
    """Call a bound method when the process ends, if its object still lives."""
    atexit.register(_call, WeakMethod(method))


def _call(method: WeakMethod[Callable[[], object]]) -> None:
    alive = method()
    if alive is not None:
        alive()


def _after_fork() -> None:
    for thing in list(_all):
        thing.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_after_fork)

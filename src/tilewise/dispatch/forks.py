"""After a fork: locks that another thread held, threads that are gone and queues of the parent are made anew.

One hook for the process, as hooks cannot be taken back; what registers here may still be collected.
"""

from __future__ import annotations

import os
from typing import Protocol
from weakref import WeakSet


class Forkable(Protocol):
    """Something with state that must not be shared with a forked child."""

    def after_fork(self) -> None:
        """Called in the child, before anything else runs there."""


_all: WeakSet[Forkable] = WeakSet()


def register(thing: Forkable) -> None:
    """Call ``thing.after_fork()`` in forked children, as long as `thing` lives."""
    _all.add(thing)


def _after_fork() -> None:
    for thing in list(_all):
        thing.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, which does not fork
    os.register_at_fork(after_in_child=_after_fork)

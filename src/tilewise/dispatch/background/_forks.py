"""Hooks for forked children and for the end of the process.

A forked child inherits locks of threads that it does not have, and queues that its parent still works on. Objects with
such state register here and are reset in the child. Registering an object does not keep it alive.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import Protocol
from weakref import WeakMethod, WeakSet


class Forkable(Protocol):
    """An object with state that a forked child must not share with its parent."""

    def after_fork(self) -> None:
        """Reset the state in the child, before any other code runs there."""


_forkables: WeakSet[Forkable] = WeakSet()  # os.register_at_fork cannot be undone, so one hook serves all objects


def register_after_fork(forkable: Forkable) -> None:
    """Call ``forkable.after_fork()`` in forked children for as long as the object lives."""
    _forkables.add(forkable)


def call_at_exit(method: Callable[[], object]) -> None:
    """Call a bound method at the end of the process, if its object still lives."""
    atexit.register(_call, WeakMethod(method))


def _call(reference: WeakMethod[Callable[[], object]]) -> None:
    method = reference()
    if method is not None:
        method()


def _after_fork() -> None:
    for forkable in list(_forkables):
        forkable.after_fork()


if hasattr(os, "register_at_fork"):  # Windows does not fork
    os.register_at_fork(after_in_child=_after_fork)

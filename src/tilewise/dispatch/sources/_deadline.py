"""A deadline for whole calls to the registry.

The time limits of HTTP clients hold for single reads, so a server that sends a byte now and then holds a call for any
time. Here the call runs in a thread of its own, which its caller leaves at the deadline. The thread holds no lock and
changes nothing that other threads see, so it does no harm until its next read or the end of the process ends it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextvars import copy_context
from typing import TypeVar

from tilewise.dispatch.background import short_turns
from tilewise.errors import RegistryUnavailableError
from tilewise.registry import registry_reader

T = TypeVar("T")


def call_within(seconds: float, uri: str, call: Callable[[], T], action: str, *, patient: bool = False) -> T:
    """Return the result of a call that reads the registry, or leave it at the deadline.

    Args:
        seconds: time limit of the whole call; waiting for other threads that use the registry does not count.
        uri: the registry, for the functions of :mod:`tilewise.registry` that `call` uses.
        call: reads the registry, and neither writes to it nor opens a session.
        action: the failure in words, e.g. "x cannot be read".
        patient: see :func:`tilewise.registry.registry_reader`.

    Raises:
        RegistryUnavailableError: the call took too long, or raised this error itself.
    """
    results: list[T] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            check()  # here, as a database that accepts a connection may never answer
            results.append(call())
        except BaseException as e:  # raised again by the caller's thread
            errors.append(e)

    # In short turns, as the time that other threads compute counts.
    with short_turns(), registry_reader(uri, patient=patient, check_later=True) as check:
        thread = threading.Thread(target=copy_context().run, args=(run,), name="tilewise registry", daemon=True)
        thread.start()
        thread.join(seconds)
    if errors:
        raise errors[0]
    if not results:
        raise RegistryUnavailableError(
            f"{action}: the registry did not answer within {seconds:g} s; start it, or set MLFLOW_TRACKING_URI"
        )
    return results[0]

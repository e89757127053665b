"""A deadline for whole calls to the registry.

The time limits of HTTP clients hold for single reads, so a server that sends a byte now and then holds a call for any
time. Here the call runs in a thread of its own: its caller leaves at the deadline, and the call is interrupted.
"""

from __future__ import annotations

import ctypes
import sys
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

from tilewise.dispatch.background import short_turns
from tilewise.errors import RegistryUnavailableError
from tilewise.registry import registry_turn

T = TypeVar("T")

TURN_S = 120.0  # to wait for other threads of the process that use the registry


def call_within(seconds: float, call: Callable[[], T], action: str) -> T:
    """Return the result of a call to the registry, or leave it at the deadline.

    Args:
        seconds: time limit of the whole call; waiting for other threads that use the registry does not count.
        call: uses the registry, in a thread of its own.
        action: the failure in words, e.g. "x cannot be read".

    Raises:
        RegistryUnavailableError: the call took too long, or raised this error itself.
    """
    job = _Job(call)
    with short_turns():  # the time that other threads compute counts, so they must not take much of it
        threading.Thread(target=job.run, name="tilewise registry", daemon=True).start()
        try:
            job.begun.wait()
            if not job.ended.wait(seconds):
                raise RegistryUnavailableError(
                    f"{action}: the registry did not answer within {seconds:g} s; start it, or set MLFLOW_TRACKING_URI"
                )
        finally:
            job.interrupt()
    return job.result()


class _Interrupted(BaseException):
    """Ends an abandoned call; no handler of ``Exception`` retries after it."""


class _Job(Generic[T]):
    """A call in another thread."""

    def __init__(self, call: Callable[[], T]) -> None:
        self._call = call
        self._results: list[T] = []
        self._error: BaseException | None = None
        self._thread_id = 0
        self._ending = threading.Lock()
        self.begun, self.ended = threading.Event(), threading.Event()

    def run(self) -> None:
        """Make the call as soon as no other thread uses the registry."""
        try:
            self._thread_id = threading.get_ident()
            try:
                with registry_turn(TURN_S):
                    self.begun.set()
                    self._results.append(self._call())
            except BaseException as e:  # raised again by the caller's thread
                self._error = e
            with self._ending:
                self.ended.set()
            self.begun.set()
        except _Interrupted:  # it came between the statements above
            self.ended.set()

    def interrupt(self) -> None:
        """Raise an exception in the call, unless it has ended; it takes effect when a read that waits returns."""
        with self._ending:
            if not self.ended.is_set() and sys.implementation.name == "cpython":
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._thread_id), ctypes.py_object(_Interrupted)
                )

    def result(self) -> T:
        """Return the result of the call, which has ended, or raise its error."""
        if self._error is not None:
            raise self._error
        return self._results[0]

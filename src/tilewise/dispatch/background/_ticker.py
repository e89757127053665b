"""A method called periodically by a daemon thread, which is restarted in forked children."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable

from tilewise.dispatch.background._forks import call_at_exit, register_after_fork

_log = logging.getLogger(__name__)


class Ticker:
    """A daemon thread that calls a bound method every `period_s` seconds, from :meth:`start` until :meth:`stop`.

    The thread also ends when the method's object is collected. An exception of the method is logged and does not end
    the thread; repetitions of the same message are not logged.

    Args:
        method: bound method to call; only a weak reference to its object is kept.
        period_s: seconds between two calls; 0 for a single call.
        name: of the thread, which log messages begin with.
    """

    def __init__(self, method: Callable[[], object], period_s: float, name: str) -> None:
        self._method, self._period_s, self._name = weakref.WeakMethod(method), period_s, name
        self._started, self._starting, self._stopped = False, threading.Lock(), threading.Event()
        register_after_fork(self)
        call_at_exit(self.stop)

    def after_fork(self) -> None:
        """Restart the thread in a forked child, which does not inherit it."""
        restart = self._started and not self._stopped.is_set()
        self._started, self._starting, self._stopped = False, threading.Lock(), threading.Event()
        if restart and self._period_s:
            self.start()

    def start(self, *, at_once: bool = False) -> None:
        """Start the thread, unless it was started before.

        Args:
            at_once: make the first call immediately instead of after one period.
        """
        if self._started:
            return
        with self._starting:
            if not self._started and not self._stopped.is_set():
                self._started = True
                args = (self._method, self._stopped, self._period_s, at_once)
                threading.Thread(target=_tick, args=args, name=self._name, daemon=True).start()

    def stop(self) -> None:
        """End the thread without waiting for a call in progress."""
        self._stopped.set()


def _tick(
    reference: weakref.WeakMethod[Callable[[], object]], stopped: threading.Event, period_s: float, at_once: bool
) -> None:  # fmt: skip
    last_message = None
    while not stopped.wait(0 if at_once else period_s):
        at_once = False
        method = reference()
        if method is None:
            return
        try:
            method()
            last_message = None
        except Exception as e:  # the next call may succeed, so the thread goes on
            if (message := f"{type(e).__name__}: {e}") != last_message:
                _log.warning("%s: %s", threading.current_thread().name, message)
                last_message = message
        del method  # a strong reference would keep the object alive during the wait
        if not period_s:
            return

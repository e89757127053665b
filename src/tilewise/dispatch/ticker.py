"""Work in the background: a method called now and then by a daemon thread, which a forked child gets anew."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable

from tilewise.dispatch import forks

_log = logging.getLogger(__name__)


class Ticker:
    """Calls a bound method every `period_s` seconds once started, until it is stopped or the method's object is gone.

    A period of 0 is for a single call at once.

    What the method raises is logged, the same message once.
    """

    def __init__(self, method: Callable[[], object], period_s: float, name: str) -> None:
        self._method, self._period_s, self._name = weakref.WeakMethod(method), period_s, name
        self._started, self._starting, self._stopped = False, threading.Lock(), threading.Event()
        forks.register(self)
        forks.at_exit(self.stop)

    def after_fork(self) -> None:
        """Start again in a child, where the parent's thread is not."""
        again = self._started and not self._stopped.is_set()
        self._started, self._starting, self._stopped = False, threading.Lock(), threading.Event()
        if again and self._period_s:
            self.start()

    def start(self, *, at_once: bool = False) -> None:
        """Begin, if that was not done; `at_once`: without waiting for the first period to pass."""
        if self._started:
            return
        with self._starting:
            if not self._started and not self._stopped.is_set():
                self._started = True
                args = (self._method, self._stopped, self._period_s, at_once)
                threading.Thread(target=_tick, args=args, name=self._name, daemon=True).start()

    def stop(self) -> None:
        """Call no more; a call that is under way is not waited for."""
        self._stopped.set()


def _tick(
    method: weakref.WeakMethod[Callable[[], object]], stopped: threading.Event, period_s: float, at_once: bool
) -> None:  # fmt: skip
    told = None
    while not stopped.wait(0 if at_once else period_s):
        at_once = False
        call = method()
        if call is None:
            return
        try:
            call()
            told = None
        except Exception as e:  # the thread has to go on: the next time it may work
            if (message := f"{type(e).__name__}: {e}") != told:
                _log.warning("%s: %s", threading.current_thread().name, message)
                told = message
        del call
        if not period_s:
            return

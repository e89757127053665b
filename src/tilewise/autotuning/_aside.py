"""Measuring aside: a thread works off jobs one by one while the program goes on."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from queue import SimpleQueue

from tilewise.dispatch.background import register_after_fork
from tilewise.errors import one_line

_log = logging.getLogger(__name__)
Job = Callable[[], object]


class AsideQueue:
    """A queue of jobs, and the thread that works them off; it starts with the first job and ends with the process."""

    def __init__(self) -> None:
        self.after_fork()
        register_after_fork(self)

    def after_fork(self) -> None:
        """Drop the jobs of the parent in a forked child, which has no such thread."""
        self._jobs: SimpleQueue[Job] = SimpleQueue()
        self._known: set[Hashable] = set()
        self._lock = threading.Lock()
        self._started = False

    def submit(self, subject: Hashable, job: Job) -> None:
        """Queue a job, unless one of this subject was queued before; its exceptions are logged."""
        with self._lock:
            if subject in self._known:
                return
            self._known.add(subject)
            self._jobs.put(job)
            if not self._started:
                self._started = True
                threading.Thread(target=self._work, args=(self._jobs,), name="tilewise tuning", daemon=True).start()

    @staticmethod
    def _work(jobs: SimpleQueue[Job]) -> None:
        while True:
            try:
                jobs.get()()
            except Exception as e:  # a job's fault must not end the thread
                _log.warning("measuring aside failed: %s", one_line(e))


aside = AsideQueue()  # one for all kernels: simultaneous measurements would disturb each other

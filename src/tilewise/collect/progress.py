"""A progress line on a terminal, or a line now and then in a log; the standard library only."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_EVERY_S = {True: 0.2, False: 15.0}  # on a terminal, in a log


class ProgressLine:
    """Call with (what, done, of); prints what changed, with the rate and the time left."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr  # looked up now: it may have been replaced since the import
        self._what = ""
        self._start = (0.0, 0)
        self._next = 0.0

    def __call__(self, what: str, done: int, of: int) -> None:
        """Say that `done` of `of` are done; prints when it is time to."""
        now = time.monotonic()
        if what != self._what:
            self._what, self._start, self._next = what, (now, done), 0.0
        if now < self._next and done < of:
            return
        terminal = self._stream.isatty()
        self._next = now + _EVERY_S[terminal]
        elapsed, gone = now - self._start[0], done - self._start[1]
        left = f", {elapsed / gone * (of - done):.0f} s left" if gone and done < of else ""
        before, after = ("\r", "   ") if terminal else ("", "")
        end = "\n" if done >= of or not terminal else ""
        self._stream.write(f"{before}{what}: {done}/{of} in {elapsed:.0f} s{left}{after}{end}")
        self._stream.flush()
        if done >= of:
            self._next = float("inf")  # once is enough

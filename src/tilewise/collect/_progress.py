"""Progress on a terminal line, or on occasional lines of a log; needs the standard library only."""

from __future__ import annotations

import sys
import time
from typing import TextIO

_SECONDS_BETWEEN_UPDATES = {True: 0.2, False: 15.0}  # on a terminal, in a log


class ProgressLine:
    """Printer of progress: each call with (step, done, total) updates the line, with the rate and the time left."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr  # looked up per instance: callers may have replaced it since the import
        self._step = ""
        self._start = (0.0, 0)
        self._next_update = 0.0

    def __call__(self, step: str, done: int, total: int) -> None:
        """Report that `done` of `total` are done in `step`; print if the line is due or the step is complete."""
        now = time.monotonic()
        if step != self._step:
            self._step, self._start, self._next_update = step, (now, done), 0.0
        if now < self._next_update and done < total:
            return
        terminal = self._stream.isatty()
        self._next_update = now + _SECONDS_BETWEEN_UPDATES[terminal]
        elapsed, finished = now - self._start[0], done - self._start[1]
        left = f", {elapsed / finished * (total - done):.0f} s left" if finished and done < total else ""
        before, after = ("\r", "   ") if terminal else ("", "")
        end = "\n" if done >= total or not terminal else ""
        self._stream.write(f"{before}{step}: {done}/{total} in {elapsed:.0f} s{left}{after}{end}")
        self._stream.flush()
        if done >= total:
            self._next_update = float("inf")  # print the complete line once only

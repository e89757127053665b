"""Lines for a file, handed over at the cost of an append and written by a thread of its own.

Bounded both ways: what a full queue cannot take is counted and left out, and a file that grows too large becomes
``FILE.1``, which replaces the one before. Processes may share a file: a lock beside it keeps their lines whole.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from pathlib import Path

from tilewise.dispatch import forks
from tilewise.dispatch.ticker import Ticker
from tilewise.files import locked

_log = logging.getLogger(__name__)

_PAUSE_S = 0.25


class Appender:
    """Writes lines in the background.

    Args:
        path: the file; folders are made as needed.
        max_bytes: size above which it is rotated.
        most: lines that may wait.

    Attributes:
        lost: lines that were left out, as too many waited or the file could not be written.
    """

    def __init__(self, path: str | Path, max_bytes: int, most: int = 4096) -> None:
        self._path, self._max_bytes, self._most = Path(path), max_bytes, most
        self._closed = False
        self.after_fork()
        forks.register(self)
        self._ticker = Ticker(self.flush, _PAUSE_S, f"tilewise {self._path.name}")
        forks.at_exit(self.close)

    def after_fork(self) -> None:
        """Begin anew in a child: what waits is the parent's to write."""
        self._waiting: deque[Callable[[], str]] = deque()
        self._writing = threading.Lock()
        self.lost = 0

    def put(self, line: Callable[[], str]) -> None:
        """Hand over what makes a line; it is called in the background."""
        if self._closed or len(self._waiting) >= self._most:
            self.lost += 1
            return
        self._waiting.append(line)
        self._ticker.start()

    def flush(self) -> None:
        """Write what waits."""
        with self._writing:
            lines = list(self._made())
            if not lines:
                return
            try:
                self._append("".join(f"{line}\n" for line in lines).encode())
            except OSError as e:
                self.lost += len(lines)
                _log.warning("%s: %d lines are left out: %s", self._path, len(lines), e)

    def close(self) -> None:
        """Write what waits, and take nothing more."""
        self._closed = True
        self._ticker.stop()
        self.flush()

    def _made(self) -> Iterator[str]:
        while self._waiting:
            make = self._waiting.popleft()
            try:
                yield make()
            except Exception as e:  # a line costs itself, never the others or who asked for it
                self.lost += 1
                _log.warning("%s: a line is left out: %s", self._path, e)

    def _append(self, data: bytes) -> None:
        with locked(self._path.with_name(f".{self._path.name}.lock")):
            with contextlib.suppress(FileNotFoundError):
                if self._path.stat().st_size + len(data) > self._max_bytes:
                    self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            with self._path.open("ab") as file:
                file.write(data)

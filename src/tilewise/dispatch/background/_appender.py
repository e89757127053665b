"""Lines appended to a file by a background thread, so that a request pays only for a queue's append.

Memory and disk are both bounded: lines that a full queue rejects are counted and dropped, lines are made and written in
small batches, and a file that grows too large is renamed to ``FILE.1``, which replaces the previous ``FILE.1``.
Processes may share a file: a lock file beside it keeps their lines whole. A batch that a full disk cuts off is taken
back, and a line that a killed process left half-written is ended before the next one.
"""

from __future__ import annotations

import contextlib
import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from pathlib import Path

from tilewise.dispatch.background._forks import call_at_exit, register_after_fork
from tilewise.dispatch.background._ticker import Ticker
from tilewise.files import locked

_log = logging.getLogger(__name__)

_PAUSE_S = 0.25
_BATCH_LINES, _BATCH_BYTES = 256, 1 << 16  # of one write


class Appender:
    """A background writer of lines to one file.

    Args:
        path: of the file; its folders are created as needed.
        max_bytes: size above which the file is rotated.
        max_waiting: number of lines that may wait to be written.

    Attributes:
        lost: number of lines dropped because the queue was full or the file could not be written.
    """

    def __init__(self, path: str | Path, max_bytes: int, max_waiting: int = 4096) -> None:
        self._path, self._max_bytes, self._max_waiting = Path(path), max_bytes, max_waiting
        self._closed = False
        self.after_fork()
        register_after_fork(self)
        self._ticker = Ticker(self.flush, _PAUSE_S, f"tilewise {self._path.name}")
        call_at_exit(self.close)

    def after_fork(self) -> None:
        """Empty the queue in a forked child: the parent writes the lines that wait."""
        self._waiting: deque[Callable[[], str]] = deque()
        self._writing = threading.Lock()
        self.lost = 0

    def put(self, make_line: Callable[[], str]) -> None:
        """Queue a function that makes a line; the background thread calls it."""
        if self._closed or len(self._waiting) >= self._max_waiting:
            self.lost += 1
            return
        self._waiting.append(make_line)
        self._ticker.start()

    def flush(self) -> None:
        """Write the lines that wait now; lines that are queued meanwhile wait for the next call."""
        with self._writing:
            waiting = len(self._waiting)
            while waiting > 0:
                waiting -= self._write_batch(min(waiting, _BATCH_LINES))

    def close(self) -> None:
        """Write all lines that wait, and accept no more."""
        self._closed = True
        self._ticker.stop()
        self.flush()

    def _write_batch(self, most: int) -> int:
        """Make and write at most `most` lines, fewer if they are long; return how many were taken from the queue."""
        lines: list[bytes] = []
        taken = size = 0
        while taken < most and size < min(_BATCH_BYTES, self._max_bytes):
            make_line = self._waiting.popleft()
            taken += 1
            try:
                lines.append(f"{make_line()}\n".encode())
                size += len(lines[-1])
            except Exception as e:  # a line that cannot be made must not cost the others
                self.lost += 1
                _log.warning("%s: a line is lost: %s", self._path, e)
        try:
            if lines:
                self._append(b"".join(lines))
        except OSError as e:
            self.lost += len(lines)
            _log.warning("%s: %d lines are lost: %s", self._path, len(lines), e)
        return taken

    def _append(self, data: bytes) -> None:
        with locked(self._path.with_name(f".{self._path.name}.lock")):
            with contextlib.suppress(FileNotFoundError):
                if self._path.stat().st_size + len(data) > self._max_bytes:
                    self._path.replace(self._path.with_name(f"{self._path.name}.1"))
            descriptor = os.open(self._path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o666)
            try:
                _append_or_nothing(descriptor, data)
            finally:
                os.close(descriptor)


def _append_or_nothing(descriptor: int, data: bytes) -> None:
    """Append lines to an open file, after ending a half-written line; a failed write leaves the file as it was.

    Raises:
        OSError: the data cannot be written, as on a full disk.
    """
    size = os.lseek(descriptor, 0, os.SEEK_END)
    if size and os.pread(descriptor, 1, size - 1) != b"\n":
        data = b"\n" + data
    try:
        while data:
            data = data[os.write(descriptor, data) :]
    except OSError:
        os.ftruncate(descriptor, size)
        raise

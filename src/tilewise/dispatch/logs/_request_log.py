"""The request log: counts of the problems asked for, and of who answered. Logging requests disables measuring.

The file is JSONL with one line and count per target, problem and answerer. Processes may share it. A damaged line is
moved to ``FILE.damaged`` when counts are added, and the others stay. ``tilewise cache problems`` turns the file into a
problem set, most requested first, for ``tilewise collect collect.problems=FILE.csv``.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tilewise.dispatch.background import Ticker, call_at_exit, register_after_fork
from tilewise.dispatch.logs._lines import DamagedLine, read_lines
from tilewise.errors import DataError
from tilewise.files import locked, write_text
from tilewise.ops import OPS, Problem, Target

_log = logging.getLogger(__name__)
_PAUSE_S = 5.0
MAX_REQUESTS = 1 << 16  # different ones, both in memory between two writes and in the file
MAX_DAMAGED_BYTES = 1 << 20  # of FILE.damaged
MAX_COUNT = 1 << 62


@dataclass(frozen=True)
class Request:
    """A request for a kernel.

    Attributes:
        target: the target's name.
        problem: the problem asked for.
        why: who answered; see :class:`tilewise.dispatch.Selection`.
    """

    target: str
    problem: Problem
    why: str


class RequestLog:
    """A counter of requests whose counts are added to a file every few seconds.

    Args:
        path: of the file.
        target: of the requests.

    Attributes:
        totals: number of requests of this process by who answered.
    """

    def __init__(self, path: str | Path, target: Target) -> None:
        self._path, self._target = Path(path), target.name
        self.after_fork()
        register_after_fork(self)
        self.totals: Counter[str] = Counter()
        self._ticker = Ticker(self.flush, _PAUSE_S, f"tilewise {self._path.name}")
        call_at_exit(self.close)

    def after_fork(self) -> None:
        """Clear the counts in a forked child: the parent writes them."""
        self._counts: Counter[Request] = Counter()
        self._lost = 0
        self._lock = threading.Lock()

    def note(self, problem: Problem, why: str) -> None:
        """Count a request; beyond :data:`MAX_REQUESTS` different ones between two writes, new ones are dropped."""
        request = Request(self._target, problem, why)
        with self._lock:
            self.totals[why] += 1
            if len(self._counts) < MAX_REQUESTS or request in self._counts:
                self._counts[request] += 1
            else:
                self._lost += 1
        self._ticker.start()

    def flush(self) -> None:
        """Add the counts to the file. Counts that cannot be written stay for the next call."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
            lost, self._lost = self._lost, 0
        if lost:
            _log.warning("%s: %d requests are lost: more than %d problems at once", self._path, lost, MAX_REQUESTS)
        if not counts:
            return
        try:
            with locked(self._path.with_name(f".{self._path.name}.lock")):
                written, damaged = _read(self._path) if self._path.exists() else (Counter[Request](), [])
                self._set_aside(damaged)
                write_text(self._path, request_log_text(dict((written + counts).most_common(MAX_REQUESTS))))
        except (OSError, DataError) as e:
            _log.warning("%s: %d requests cannot be written yet: %s", self._path, counts.total(), e)
            self._put_back(counts)

    def _put_back(self, counts: Counter[Request]) -> None:
        with self._lock:
            merged = counts + self._counts
            self._counts = Counter(dict(merged.most_common(MAX_REQUESTS)))
            self._lost += merged.total() - self._counts.total()

    def _set_aside(self, damaged: list[DamagedLine]) -> None:
        """Append damaged lines to ``FILE.damaged``, up to :data:`MAX_DAMAGED_BYTES`."""
        if not damaged:
            return
        aside = self._path.with_name(f"{self._path.name}.damaged")
        first, data = damaged[0], b"".join(line.data + b"\n" for line in damaged)
        _log.warning(
            "%s:%d: not a line of a request log: %s; %d damaged lines are moved to %s",
            self._path, first.number, first.reason, len(damaged), aside,
        )  # fmt: skip
        with aside.open("ab") as file:
            if file.tell() + len(data) <= MAX_DAMAGED_BYTES:
                file.write(data)

    def close(self) -> None:
        """Stop the background thread and add the counts to the file."""
        self._ticker.stop()
        self.flush()


def read_request_log(path: str | Path) -> Counter[Request]:
    """Read the count of each request. Damaged lines are skipped with a warning that names file and line.

    Raises:
        DataError: the file cannot be read, or all its lines are damaged; names file and line.
    """
    counts, damaged = _read(path)
    if damaged:
        message = f"{path}:{damaged[0].number}: not a line of a request log: {damaged[0].reason}"
        if not counts:
            raise DataError(message)
        _log.warning("%s; %d damaged lines are skipped", message, len(damaged))
    return counts


def _read(path: str | Path) -> tuple[Counter[Request], list[DamagedLine]]:
    """Return the count of each request, and the damaged lines."""
    lines = read_lines(path, _parse)
    counts: Counter[Request] = Counter()
    for request, count in lines.values:
        counts[request] += count
    return counts, lines.damaged


def _parse(values: Mapping[str, Any]) -> tuple[Request, int]:
    """Return the request and the count of a parsed line.

    Raises:
        UsageError, KeyError, TypeError, ValueError: the line is not a counted request.
    """
    target, why, count = values["target"], values["why"], values["count"]
    if type(why) is not str or type(count) is not int or not 0 < count < MAX_COUNT:
        raise ValueError(f"why must be a text and count a positive integer, got {why!r:.80} and {count!r:.80}")
    return Request(target, OPS[Target.parse(target).op].from_dict(values["problem"]), why), count


def count_requests(path: str | Path, target: Target) -> dict[Problem, int]:
    """Return how often each problem of a target was requested, most requested first.

    Raises:
        DataError: the file cannot be read, or has no request for the target; names the targets that it has.
    """
    requests = read_request_log(path)
    counts: Counter[Problem] = Counter()
    for request, count in requests.items():
        if request.target == target.name:
            counts[request.problem] += count
    if not counts:
        known = ", ".join(sorted({request.target for request in requests}))
        raise DataError(f"{path}: no requests for {target.name}; the file has requests for {known or 'no target'}")
    return dict(sorted(counts.items(), key=lambda item: (-item[1], str(item[0]))))


def request_log_text(counts: Mapping[Request, int]) -> str:
    """Return the text of a request log with these counts, most requested first."""
    rows = [
        {"target": request.target, "problem": request.problem.stated(), "why": request.why, "count": count}
        for request, count in counts.items()
    ]
    rows.sort(key=lambda row: (-int(str(row["count"])), json.dumps(row)))
    return "".join(f"{json.dumps(row)}\n" for row in rows)

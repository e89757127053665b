"""The record-only mode: which problems are asked for, how often, and who answered; nothing is measured.

The file is JSONL, one line a target, problem and answerer with its count. Processes may share it. ``tilewise cache
problems`` makes of it a problem set, the most asked for first, for ``tilewise collect collect.problems=FILE.csv``.
"""

from __future__ import annotations

import json
import logging
import threading
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tilewise.dispatch import forks
from tilewise.dispatch.ticker import Ticker
from tilewise.errors import DataError, UsageError
from tilewise.files import locked, write_text
from tilewise.ops import OPS, Problem, Target

_log = logging.getLogger(__name__)
_PAUSE_S = 5.0


@dataclass(frozen=True)
class Asked:
    """A problem that was asked for, and why the answer was what it was (``Selection.why``)."""

    target: str
    problem: Problem
    why: str


class Record:
    """Counts what is asked for, and adds it to the file now and then; see the module."""

    def __init__(self, path: str | Path, target: Target) -> None:
        self._path, self._target = Path(path), target.name
        self.after_fork()
        forks.register(self)
        self._ticker = Ticker(self.flush, _PAUSE_S, f"tilewise {self._path.name}")
        forks.at_exit(self.close)

    def after_fork(self) -> None:
        """Begin anew in a child: what was counted is the parent's to write."""
        self._counts: Counter[Asked] = Counter()
        self._lock = threading.Lock()

    def note(self, problem: Problem, why: str) -> None:
        """Count a request."""
        with self._lock:
            self._counts[Asked(self._target, problem, why)] += 1
        self._ticker.start()

    def flush(self) -> None:
        """Add what was counted to the file."""
        with self._lock:
            counts, self._counts = self._counts, Counter()
        if not counts:
            return
        try:
            with locked(self._path.with_name(f".{self._path.name}.lock")):
                before = read(self._path) if self._path.exists() else Counter[Asked]()
                write_text(self._path, dumps(before + counts))
        except (OSError, DataError) as e:
            _log.warning("%s: what was asked for cannot be kept: %s", self._path, e)

    def close(self) -> None:
        """Write what was counted."""
        self._ticker.stop()
        self.flush()


def read(path: str | Path) -> Counter[Asked]:
    """What a file holds.

    Raises:
        DataError: it cannot be read, or a line is no problem of a record; names file and line.
    """
    try:
        lines = Path(path).read_text().splitlines()
    except (OSError, UnicodeDecodeError) as e:
        raise DataError(f"{path}: cannot be read: {e}") from e
    counts: Counter[Asked] = Counter()
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
            problem = OPS[Target.parse(values["target"]).op].from_dict(values["problem"])
            counts[Asked(values["target"], problem, str(values["why"]))] += int(values["count"])
        except (UsageError, ValueError, LookupError, TypeError, AttributeError, OverflowError) as e:
            raise DataError(f"{path}:{number}: no problem of a record: {e}") from e
    return counts


def calls_of(path: str | Path, target: Target) -> dict[Problem, int]:
    """How often each problem of a target was asked for, whoever answered: the most asked for first.

    Raises:
        DataError: the file cannot be read, or has no problem of the target; names the file, and what it has.
    """
    asked = read(path)
    counts: Counter[Problem] = Counter()
    for of, count in asked.items():
        if of.target == target.name:
            counts[of.problem] += count
    if not counts:
        known = ", ".join(sorted({of.target for of in asked}))
        raise DataError(f"{path}: no problem of {target.name}; there are some of {known or 'nothing'}")
    return dict(sorted(counts.items(), key=lambda of: (-of[1], str(of[0]))))


def dumps(counts: Mapping[Asked, int]) -> str:
    """The text of a file: the most asked for first."""
    rows = [
        {"target": a.target, "problem": a.problem.to_dict(), "why": a.why, "count": count}
        for a, count in counts.items()
    ]
    rows.sort(key=lambda row: (-int(str(row["count"])), json.dumps(row)))
    return "".join(f"{json.dumps(row)}\n" for row in rows)

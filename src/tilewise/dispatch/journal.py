"""The journal of decisions: one JSON object a line, in a bounded file; ``tilewise explain`` replays them.

A decision is one line; while it stands, asking again is no new one. A request costs an append: what goes into the line,
such as the ranking, is worked out by the thread that writes it, from the same model.
"""

from __future__ import annotations

import json
import os
import random
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from tilewise.dispatch.appender import Appender
from tilewise.dispatch.generation import Generation
from tilewise.dispatch.selection import Decision
from tilewise.dispatch.switches import Switches
from tilewise.errors import DataError
from tilewise.ops import Problem

FORMAT = 1
RANKED = 5  # of the ranking, in a line


class Journal:
    """Notes decisions; see the module."""

    def __init__(self, switches: Switches) -> None:
        self._share = switches.journal_share
        self._appender = Appender(switches.journal, int(switches.journal_mb * 1e6))

    def note(self, generation: Generation, problem: Problem, decision: Decision, seconds: float) -> None:
        """Note a decision that took so long."""
        if self._share >= 1 or random.random() < self._share:
            now = datetime.now(UTC)
            self._appender.put(lambda: self._line(generation, problem, decision, seconds, now))

    def close(self) -> None:
        """Write what waits."""
        self._appender.close()

    def _line(
        self, generation: Generation, problem: Problem, decision: Decision, seconds: float, now: datetime
    ) -> str:  # fmt: skip
        return json.dumps(describe(generation, problem, decision, seconds, now) | {"lost": self._appender.lost})


def describe(
    generation: Generation, problem: Problem, decision: Decision, seconds: float, now: datetime
) -> dict[str, Any]:  # fmt: skip
    """A decision as plain data."""
    selection = decision.selection
    return {
        "format": FORMAT,
        "time": now.isoformat(timespec="milliseconds"),
        "pid": os.getpid(),
        "target": generation.target.name,
        "problem": problem.to_dict(),
        "kernel_name": selection.kernel_name,
        "why": selection.why,
        "cause": decision.cause,
        "predicted_tflops": selection.predicted_tflops,
        "measured_ms": selection.measured_ms,
        "seconds": round(seconds, 9),
        "model_version": generation.version,
        "content_hash": generation.content_hash,
        "pool_hash": generation.pool.hash,
        "ranking": [[s.kernel_name, s.predicted_tflops] for s in generation.rank(problem, RANKED)],
    }


def read(path: str | Path) -> list[dict[str, Any]]:
    """The decisions of a journal, oldest first, those of the file before a rotation included.

    Raises:
        DataError: there is no such file, or a line is no decision; names file and line.
    """
    path = Path(path)
    found = []
    for file in (path.with_name(f"{path.name}.1"), path):
        if file != path and not file.is_file():
            continue
        try:
            lines = file.read_text().splitlines()
        except (OSError, UnicodeDecodeError) as e:
            raise DataError(f"{file}: cannot be read: {e}") from e
        for number, line in enumerate(lines, 1):
            try:
                values = json.loads(line)
                if values["format"] != FORMAT or not all(k in values for k in ("target", "problem", "kernel_name")):
                    raise KeyError("format")
            except (ValueError, KeyError, TypeError) as e:
                raise DataError(f"{file}:{number}: no decision of a dispatcher's journal") from e
            found.append(values)
    return found

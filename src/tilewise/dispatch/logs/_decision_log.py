"""The decision log: one JSON object per decision, in a file of bounded size. ``tilewise explain`` replays its lines.

A remembered decision is not logged again. A request pays only for a queue's append: the thread that writes the line
also computes its costly parts, such as the ranking, with the model that decided.
"""

from __future__ import annotations

import json
import logging
import os
import random
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from types import NoneType
from typing import Any, NotRequired, TypedDict, cast

from tilewise.dispatch._generation import Generation
from tilewise.dispatch._selection import Decision, Why
from tilewise.dispatch._switches import Switches
from tilewise.dispatch.background import Appender
from tilewise.dispatch.logs._lines import read_lines
from tilewise.errors import DataError
from tilewise.ops import Problem

FORMAT = 1
RANKED_KERNELS = 5  # listed per line

_log = logging.getLogger(__name__)


class DecisionLine(TypedDict):
    """One line of the decision log.

    Attributes:
        format: version of this layout.
        time: of the decision, UTC, ISO 8601.
        pid: id of the deciding process.
        target: the target's name.
        problem: the problem's dimensions.
        kernel_name, why, predicted_tflops, measured_ms: see :class:`tilewise.dispatch.Selection`.
        cause: why no better founded decision was possible; None if nothing prevented it.
        seconds: duration of the decision.
        model_version: number in the registry; None for models from elsewhere.
        content_hash: of the model; None without one.
        pool_hash: of the pool.
        ranking: [kernel name, predicted TFLOPS] of the best ranked kernels.
        lost: number of lines that the log dropped before this one.
    """

    format: int
    time: str
    pid: int
    target: str
    problem: dict[str, int | str]
    kernel_name: str
    why: Why
    cause: str | None
    predicted_tflops: float | None
    measured_ms: float | None
    seconds: float
    model_version: int | None
    content_hash: str | None
    pool_hash: str
    ranking: list[tuple[str, float | None]]
    lost: NotRequired[int]


class DecisionLog:
    """A writer of decisions, configured by the switches `journal`, `journal_share` and `journal_mb`."""

    def __init__(self, switches: Switches) -> None:
        self._share = switches.journal_share
        self._appender = Appender(switches.journal, int(switches.journal_mb * 1e6))

    def note(self, generation: Generation, problem: Problem, decision: Decision, seconds: float) -> None:
        """Log a decision that took `seconds`, or skip it according to the switch `journal_share`."""
        if self._share >= 1 or random.random() < self._share:
            now = datetime.now(UTC)
            self._appender.put(lambda: self._line(generation, problem, decision, seconds, now))

    def close(self) -> None:
        """Write the lines that wait."""
        self._appender.close()

    def _line(
        self, generation: Generation, problem: Problem, decision: Decision, seconds: float, time: datetime
    ) -> str:  # fmt: skip
        line = describe_decision(generation, problem, decision, seconds, time)
        line["lost"] = self._appender.lost
        return json.dumps(line)


def describe_decision(
    generation: Generation, problem: Problem, decision: Decision, seconds: float, time: datetime
) -> DecisionLine:  # fmt: skip
    """Return a decision as plain data.

    Args:
        generation: the generation that decided.
        problem: the problem it decided on.
        decision: the decision.
        seconds: duration of the decision.
        time: of the decision.
    """
    selection = decision.selection
    return {
        "format": FORMAT,
        "time": time.isoformat(timespec="milliseconds"),
        "pid": os.getpid(),
        "target": generation.target.name,
        "problem": problem.stated(),
        "kernel_name": selection.kernel_name,
        "why": selection.why,
        "cause": decision.cause,
        "predicted_tflops": selection.predicted_tflops,
        "measured_ms": selection.measured_ms,
        "seconds": round(seconds, 9),
        "model_version": generation.version,
        "content_hash": generation.content_hash,
        "pool_hash": generation.pool.hash,
        "ranking": [(s.kernel_name, s.predicted_tflops) for s in generation.rank(problem, RANKED_KERNELS)],
    }


# Types of the members of a line, against damage; `lost` may be missing.
_TYPES: dict[str, tuple[type, ...]] = {
    "target": (str,),
    "problem": (dict,),
    "kernel_name": (str,),
    "why": (str,),
    "cause": (str, NoneType),
    "predicted_tflops": (float, int, NoneType),
    "measured_ms": (float, int, NoneType),
    "seconds": (float, int),
    "time": (str,),
    "model_version": (int, NoneType),
    "content_hash": (str, NoneType),
    "pool_hash": (str,),
    "ranking": (list,),
}


def read_decision_log(path: str | Path) -> list[DecisionLine]:
    """Read all decisions of a log, oldest first, including those of the rotated file ``FILE.1``.

    Damaged lines are skipped with a warning that names file and line.

    Raises:
        DataError: the file is missing or unreadable, or all its lines are damaged; names file and line.
    """
    path = Path(path)
    decisions: list[DecisionLine] = []
    damaged: list[str] = []
    for file in (path.with_name(f"{path.name}.1"), path):
        if file != path and not file.is_file():
            continue
        found = read_lines(file, _parse)
        decisions += found.values
        damaged += [f"{file}:{line.number}" for line in found.damaged]
    if damaged and not decisions:
        raise DataError(f"{damaged[0]}: not a decision; expected a line of a file that TILEWISE_JOURNAL names")
    if damaged:
        _log.warning("%s: not a decision; %d damaged lines are skipped", damaged[0], len(damaged))
    return decisions


def _parse(values: Mapping[str, Any]) -> DecisionLine:
    """Return one parsed line as a decision.

    Raises:
        KeyError, TypeError, ValueError: the line is no decision.
    """
    if values["format"] != FORMAT:
        raise ValueError(f"its format must be {FORMAT}, got {values['format']!r}")
    for name, types in _TYPES.items():
        if not isinstance(values[name], types) or isinstance(values[name], bool):
            raise TypeError(f"{name} must not be {values[name]!r:.80}")
    ranking = [(str(name), None if tflops is None else float(tflops)) for name, tflops in values["ranking"]]
    return cast(DecisionLine, {**values, "ranking": ranking})  # JSON has no tuples

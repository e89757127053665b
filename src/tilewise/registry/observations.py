"""What shadowing saw: one JSON object a line, each about one problem and exactly one pair of models.

Dispatchers write them (:mod:`tilewise.dispatch.shadow`); the report, the gate and the automatic roll-back read them.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tilewise.errors import DataError, UsageError
from tilewise.ops import OPS, Problem, Target

FORMAT = 1
_HASH = re.compile("[0-9a-f]{64}")


@dataclass(frozen=True)
class Pick:
    """What one model selects for a problem.

    Attributes:
        content_hash: of the model's files.
        version: in the registry; None where it came from a folder.
        kernel_name: its kernel; "" where it has none.
        ms: times of the kernel in milliseconds, interleaved with the other model's; () where nothing was timed.
    """

    content_hash: str
    version: int | None
    kernel_name: str
    ms: tuple[float, ...] = ()


@dataclass(frozen=True)
class Observation:
    """Both picks of one problem; times are only taken where they differ.

    Attributes:
        target: the target's name.
        problem: what was computed.
        production: the model that serves, whose kernel was launched.
        candidate: the model beside it.
        calls: of the problem since the process's last observation of it.
        ms_a_call: of production's kernel, measured or else predicted: what a call weighs.
        device: where it was timed.
        error: why the picks could not be timed; None: they were, or there was no need.
        time: UTC, ISO 8601.
        pid: of the process.
    """

    target: str
    problem: Problem
    production: Pick
    candidate: Pick
    calls: int
    ms_a_call: float
    device: str = ""
    error: str | None = None
    time: str = ""
    pid: int = 0

    @property
    def agrees(self) -> bool:
        """Whether both models pick the same kernel."""
        return self.production.kernel_name == self.candidate.kernel_name

    def dumps(self) -> str:
        """One line, without its end."""
        values = {"format": FORMAT, **self.__dict__, "problem": self.problem.to_dict()}
        return json.dumps(values | {side: getattr(self, side).__dict__ for side in ("production", "candidate")})

    @classmethod
    def loads(cls, line: str) -> Self:
        """The inverse of :meth:`dumps`.

        Raises:
            DataError: the line is no observation.
        """
        try:
            values = json.loads(line)
            if values.pop("format") != FORMAT:
                raise ValueError("another format")
            values["problem"] = OPS[Target.parse(values["target"]).op].from_dict(values["problem"])
            for side in ("production", "candidate"):
                values[side] = _pick(values[side])
            found = cls(**values)
            if len(found.production.ms) != len(found.candidate.ms):
                raise ValueError("times without their counterparts")
            if not (isinstance(found.calls, int) and found.calls >= 0 and _is_time(found.ms_a_call)):
                raise ValueError("calls or ms_a_call are none")
            said = (found.device, found.time, "" if found.error is None else found.error)
            if not (all(isinstance(text, str) for text in said) and isinstance(found.pid, int)):
                raise ValueError("device, time, error or pid are none")
        except (UsageError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as e:
            raise DataError(f"no observation of a shadow: {e!r:.200}") from e
        return found


@dataclass(frozen=True)
class Observations:
    """Those of a file, oldest first, and how many of its lines were damaged and are left out."""

    found: tuple[Observation, ...]
    damaged: int


def read(path: str | Path) -> Observations:
    """The observations of a file, those of the file before a rotation included.

    A process that is killed may leave half a line: damaged lines are counted, and the others count all the same.

    Raises:
        DataError: the file cannot be read, or none of its lines is an observation.
    """
    path = Path(path)
    found, damaged, last = [], 0, ""
    for file in (path.with_name(f"{path.name}.1"), path):
        if file != path and not file.is_file():
            continue
        try:
            lines = file.read_text(errors="replace").splitlines()
        except OSError as e:
            raise DataError(f"{file}: cannot be read: {e}") from e
        for number, line in enumerate(lines, 1):
            try:
                found.append(Observation.loads(line))
            except DataError as e:
                damaged, last = damaged + 1, f"{file}:{number}: {e}"
    if not found:
        raise DataError(last or f"{path}: it is empty")
    return Observations(tuple(found), damaged)


def _pick(values: Mapping[str, Any]) -> Pick:
    pick = Pick(**values)
    times = tuple(pick.ms)
    if not _HASH.fullmatch(pick.content_hash) or not isinstance(pick.kernel_name, str):
        raise ValueError("no pick of a model")
    if not all(map(_is_time, times)):
        raise ValueError("times are none")
    return Pick(pick.content_hash, None if pick.version is None else int(pick.version), pick.kernel_name, times)


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0

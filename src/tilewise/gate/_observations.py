"""Shadow observations: a journal with one JSON object per line, each about one problem and one pair of models.

Dispatchers write the journal (:mod:`tilewise.dispatch.shadowing`). The shadow report, the gate and the automatic
rollback read it.
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
    """The selection of one model for a problem. Field names are keys of the journal.

    Attributes:
        content_hash: Identity of the model's files.
        version: The version in the registry; None for a model from a folder.
        kernel_name: The selected kernel; "" if the model has no kernel for the problem.
        ms: Times of the kernel in milliseconds, interleaved with the other model's; () if nothing was timed.
    """

    content_hash: str
    version: int | None
    kernel_name: str
    ms: tuple[float, ...] = ()


@dataclass(frozen=True)
class Observation:
    """Both picks of one problem. Only differing picks are timed. Field names are keys of the journal.

    Attributes:
        target: The target's name.
        problem: The problem of the request.
        production: The model that serves; its kernel was launched.
        candidate: The model beside it.
        calls: Calls of the problem since the process's last observation of it.
        ms_a_call: Milliseconds per call of production's kernel, measured or predicted: the weight of a call.
        device: The device that timed the picks.
        error: The reason why differing picks could not be timed; None if they were timed or need no timing.
        time: UTC, ISO 8601.
        pid: The writing process.
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
        """Return whether both models pick the same kernel."""
        return self.production.kernel_name == self.candidate.kernel_name

    def dumps(self) -> str:
        """Return the observation as one line, without a line end."""
        values = {"format": FORMAT, **self.__dict__, "problem": self.problem.stated()}
        return json.dumps(values | {side: getattr(self, side).__dict__ for side in ("production", "candidate")})

    @classmethod
    def loads(cls, line: str) -> Self:
        """Parse a line written by :meth:`dumps`.

        Raises:
            DataError: The line is not an observation.
        """
        try:
            values = json.loads(line)
            if values.pop("format") != FORMAT:
                raise ValueError(f"format must be {FORMAT}")
            values["problem"] = OPS[Target.parse(values["target"]).op].from_dict(values["problem"])
            for side in ("production", "candidate"):
                values[side] = _pick(values[side])
            observation = cls(**values)
            observation._validate()
        except (UsageError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as e:
            raise DataError(f"the line is no observation of a shadow: {e!r:.200}; remove the line") from e
        return observation

    def _validate(self) -> None:
        if len(self.production.ms) != len(self.candidate.ms):
            raise ValueError("both picks need the same number of times")
        if not (isinstance(self.calls, int) and self.calls >= 0 and _is_time(self.ms_a_call)):
            raise ValueError("calls must be 0 or more, and ms_a_call a positive number")
        texts = (self.device, self.time, "" if self.error is None else self.error)
        if not (all(isinstance(text, str) for text in texts) and isinstance(self.pid, int)):
            raise ValueError("device, time and error must be text, and pid a whole number")


@dataclass(frozen=True)
class Observations:
    """The content of a journal.

    Attributes:
        valid: The observations, oldest first.
        damaged: Number of lines that are not observations. They are skipped.
    """

    valid: tuple[Observation, ...]
    damaged: int


def read_observations(path: str | Path) -> Observations:
    """Read a journal, including the file ``<path>.1`` that a rotation left.

    A killed process may leave half a line, so damaged lines are counted and skipped. A line with times that is
    repeated, as in a journal that was copied onto itself, counts once: it is one observation.

    Raises:
        DataError: The file cannot be read, or it holds no valid observation.
    """
    path = Path(path)
    valid, damaged, last_error, timed = [], 0, "", set[str]()
    for file in (path.with_name(f"{path.name}.1"), path):
        if file != path and not file.is_file():
            continue
        try:
            lines = file.read_text(errors="replace").splitlines()
        except OSError as e:
            raise DataError(
                f"{file}: the journal of observations cannot be read: {e.strerror}; a dispatcher with TILEWISE_SHADOW "
                "writes one"
            ) from e
        for number, line in enumerate(lines, 1):
            try:
                observation = Observation.loads(line)
            except DataError as e:
                damaged, last_error = damaged + 1, f"{file}:{number}: {e}"
                continue
            if line not in timed:
                valid.append(observation)
            if observation.production.ms:
                timed.add(line)
    if not valid:
        raise DataError(
            last_error
            or f"{path}: a journal needs at least one observation, but it is empty; "
            "let a dispatcher with TILEWISE_SHADOW write it first"
        )
    return Observations(tuple(valid), damaged)


def _pick(values: Mapping[str, Any]) -> Pick:
    pick = Pick(**values)
    times = tuple(pick.ms)
    if not _HASH.fullmatch(pick.content_hash) or not isinstance(pick.kernel_name, str):
        raise ValueError("a pick needs a content hash of 64 hexadecimal digits and a kernel name")
    if not all(map(_is_time, times)):
        raise ValueError("ms must hold positive numbers")
    return Pick(pick.content_hash, None if pick.version is None else int(pick.version), pick.kernel_name, times)


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value) and value > 0

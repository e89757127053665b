"""Problems of a file: each distinct problem is checked once, and its work is spread over its rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tilewise.data.importers._reader import EMPTY, Floats, Ints
from tilewise.errors import ProblemError
from tilewise.ops import OPS, Target

_MAX_PROBLEMS = 1 << 16  # kept in memory, about a kilobyte each


class _Fact(NamedTuple):
    """The facts about a problem that its rows need; `fault` is "" for a possible problem."""

    fault: str
    flops: float
    bytes: float


class ProblemFacts:
    """Facts about the problem of each row; arrays of shape (rows,).

    Attributes:
        flops: FLOPs; 1 for an impossible problem.
        bytes: the fewest bytes that must be moved; 1 for an impossible problem.
        faults: reason by row index, for impossible problems.

    Args:
        facts: facts of each stretch of rows.
        lengths: rows of each stretch.
    """

    def __init__(self, facts: Sequence[_Fact], lengths: Ints) -> None:
        self.flops: Floats = np.repeat(np.array([f.flops for f in facts], dtype=np.float64), lengths)
        self.bytes: Floats = np.repeat(np.array([f.bytes for f in facts], dtype=np.float64), lengths)
        starts = np.append(0, np.cumsum(lengths))
        self.faults = {
            row: fact.fault
            for i, fact in enumerate(facts)
            if fact.fault
            for row in range(int(starts[i]), int(starts[i + 1]))
        }


class ProblemLookup:
    """The problems found so far. Rows of one problem usually follow each other, so each stretch is looked up once."""

    def __init__(self, target: Target) -> None:
        self._target = target
        self._known: dict[tuple[int, ...], _Fact] = {}

    def look_up(self, columns: Mapping[str, Ints]) -> ProblemFacts:
        """Return the facts about each row's problem.

        Args:
            columns: all problem columns in order, of shape (rows,) each; a layout is an index into
                the op's layouts, or -1.
        """
        if len(self._known) > _MAX_PROBLEMS:
            self._known.clear()
        values = list(columns.values())
        is_start = np.zeros(len(values[0]), dtype=bool)
        is_start[:1] = True
        for column in values:
            is_start[1:] |= column[1:] != column[:-1]
        starts = np.flatnonzero(is_start)
        facts = []
        for key in zip(*(column[starts].tolist() for column in values), strict=True):
            fact = self._known.get(key)
            if fact is None:
                fact = self._known[key] = self._fact(key)
            facts.append(fact)
        return ProblemFacts(facts, np.diff(np.append(starts, len(is_start))))

    def _fact(self, key: tuple[int, ...]) -> _Fact:
        kind = OPS[self._target.op]
        values: dict[str, Any] = dict(zip(kind.column_names(), key, strict=True))
        empty = [n for n, v in values.items() if v == EMPTY]
        if "layout" in values:
            values["layout"] = kind.layouts[values["layout"]] if values["layout"] >= 0 else "an unknown one"
        try:
            if empty:
                raise ProblemError(empty[0], "is empty")
            problem = kind(**values)
            return _Fact("", float(problem.flops), float(problem.min_bytes(self._target.dtype)))
        except ProblemError as e:
            return _Fact(str(e), 1.0, 1.0)

"""Columns that a file may omit: rates, which follow from a problem's work and the latency, and later columns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from tilewise.data._backends import backend_of_frame
from tilewise.data._columns import PROGRAMS_COLUMN
from tilewise.data._rows import numbered
from tilewise.errors import ProblemError, UsageError
from tilewise.kernels import Backend, KernelValue
from tilewise.ops import OPS, Problem

Floats = npt.NDArray[np.float64]

_OTHER_COLUMNS = ("dtype", "variant")  # that work depends on, besides the problem


@dataclass(frozen=True)
class Work:
    """The work of each row's problem; arrays of shape (rows,).

    Attributes:
        fault: the reason why the problem is impossible, "" if it is possible.
        flops: NaN for an impossible problem.
        bytes: the fewest bytes that must be moved; NaN for an impossible problem.
    """

    fault: npt.NDArray[np.object_]
    flops: Floats
    bytes: Floats

    def rates(self, latency_ms: pd.Series) -> dict[str, pd.Series]:
        """Return the columns of :data:`~tilewise.data.DERIVED_COLUMNS`, for latencies of shape (rows,)."""
        return {"tflops": self.flops / 1e9 / latency_ms, "bandwidth_gb_s": self.bytes / 1e6 / latency_ms}


def work_of(frame: pd.DataFrame, op: str) -> Work:
    """Compute the work of each row's problem; the problem columns must not have empty cells."""
    by = [*OPS[op].column_names(), *_OTHER_COLUMNS]
    problem, first = numbered(frame, by)
    facts = [_facts(OPS[op], row) for row in frame[by].iloc[first].itertuples(index=False, name=None)]
    fault, flops, moved = zip(*facts, strict=True) if facts else ((), (), ())
    return Work(np.array(fault, dtype=object)[problem], np.array(flops)[problem], np.array(moved)[problem])


def with_rates(frame: pd.DataFrame, op: str) -> pd.DataFrame:
    """Return the table with any missing column of :data:`~tilewise.data.DERIVED_COLUMNS` added.

    A cell stays empty if the row has no latency or its problem is impossible.
    """
    is_complete = frame["latency_ms"].gt(0) & frame[[*OPS[op].column_names(), *_OTHER_COLUMNS]].notna().all(axis=1)
    timed = frame[is_complete.astype(bool)]
    rates = work_of(timed, op).rates(timed["latency_ms"])
    return frame.assign(**{name: values.reindex(frame.index) for name, values in rates.items() if name not in frame})


def with_later_columns(frame: pd.DataFrame, op: str) -> pd.DataFrame:
    """Return the table with any missing later column added: each row has the default.

    Later columns are those of :attr:`Problem.later_columns` and :attr:`Backend.later_columns`, and the version of
    programs.
    """
    implied = implied_columns(op, backend_of_frame(frame)).items()
    return with_constants(frame, {name: value for name, value in implied if name not in frame})


def with_constants(frame: pd.DataFrame, values: Mapping[str, KernelValue | None]) -> pd.DataFrame:
    """Return the table with columns that have one value each; None stands for empty cells of integers."""
    empty = pd.Series(pd.NA, index=frame.index, dtype="Int64")
    return frame.assign(**{name: empty if value is None else value for name, value in values.items()})


def holds_only(values: pd.Series, value: KernelValue | None) -> bool:
    """Return whether all cells have this value; None stands for empty cells."""
    return bool((values.isna() if value is None else values == value).all())


def without_implied(frame: pd.DataFrame, op: str) -> pd.DataFrame:
    """Return the table without later columns in which every row has the default, as files and digests have it.

    So files and digests of a table stay as they were before the op or the backend had these columns.
    """
    implied = implied_columns(op, backend_of_frame(frame)).items()
    return frame.drop(columns=[name for name, value in implied if name in frame and holds_only(frame[name], value)])


def implied_columns(op: str, backend: Backend) -> dict[str, KernelValue | None]:
    """Return the later columns of the op, of a backend's kernels and of all tables, with their defaults."""
    defaults = OPS[op].defaults()
    return {**{n: defaults[n] for n in OPS[op].later_columns}, **backend.later_columns, PROGRAMS_COLUMN: None}


@lru_cache(maxsize=1 << 15)
def _facts(kind: type[Problem], values: tuple[object, ...]) -> tuple[str, float, float]:
    """Return the fault of a row's problem ("" if it is possible), its FLOPs and its fewest bytes.

    Reading a table computes rates with it, and checking them needs it again.

    Args:
        kind: of the problem; its class, because an op of the user's own can be defined again.
        values: of the problem's columns and :data:`_OTHER_COLUMNS`.
    """
    row = dict(zip((*kind.column_names(), *_OTHER_COLUMNS), values, strict=True))
    try:
        problem = kind.from_dict({name: row[name] for name in kind.column_names()})
        if row["variant"] not in kind.variants:
            raise ProblemError("variant", f"must be one of {', '.join(kind.variants)}, got {row['variant']!r}")
        return "", float(problem.flops), float(problem.min_bytes(cast(str, row["dtype"])))
    except UsageError as e:
        return str(e), np.nan, np.nan

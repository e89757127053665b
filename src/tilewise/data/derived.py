"""What follows from a row's problem and its latency: FLOPs, bytes, and the rates that a file need not store."""

from __future__ import annotations

from dataclasses import dataclass
from typing import cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from tilewise.data.rows import problem_index
from tilewise.errors import ProblemError, UsageError
from tilewise.ops import OPS

Floats = npt.NDArray[np.float64]

_BESIDE = ("dtype", "variant")  # what work depends on beside the problem


@dataclass(frozen=True)
class Work:
    """Of each row's problem; arrays of shape (rows,).

    Attributes:
        fault: why the problem is impossible, "" where it is not.
        flops: NaN where it is.
        bytes: the fewest that can be moved; likewise.
    """

    fault: npt.NDArray[np.object_]
    flops: Floats
    bytes: Floats

    def rates(self, latency_ms: pd.Series) -> dict[str, pd.Series]:
        """The columns of :data:`~tilewise.data.columns.DERIVED`."""
        return {"tflops": self.flops / 1e9 / latency_ms, "bandwidth_gb_s": self.bytes / 1e6 / latency_ms}


def work_of(frame: pd.DataFrame, op: str) -> Work:
    """What the problems of a table's rows take; cells of the problem must not be empty."""
    by = [*OPS[op].column_names(), *_BESIDE]
    distinct = frame[by].drop_duplicates()
    facts = [_facts(op, dict(zip(by, row, strict=True))) for row in distinct.itertuples(index=False, name=None)]
    fault, flops, moved = zip(*facts, strict=True) if facts else ((), (), ())
    which = problem_index(frame, op, *_BESIDE)
    return Work(np.array(fault, dtype=object)[which], np.array(flops)[which], np.array(moved)[which])


def with_rates(frame: pd.DataFrame, op: str) -> pd.DataFrame:
    """The table with what it lacks of :data:`~tilewise.data.columns.DERIVED`.

    Empty where a row has no latency or no possible problem.
    """
    whole = frame["latency_ms"].gt(0) & frame[[*OPS[op].column_names(), *_BESIDE]].notna().all(axis=1)
    timed = frame[whole.astype(bool)]
    rates = work_of(timed, op).rates(timed["latency_ms"])
    return frame.assign(**{name: values.reindex(frame.index) for name, values in rates.items() if name not in frame})


def _facts(op: str, row: dict[str, object]) -> tuple[str, float, float]:
    """Why the problem of a row is impossible, its FLOPs and its fewest bytes."""
    try:
        problem = OPS[op].from_dict({name: row[name] for name in OPS[op].column_names()})
        if row["variant"] not in OPS[op].variants:
            raise ProblemError("variant", f"must be one of {', '.join(OPS[op].variants)}, got {row['variant']!r}")
        return "", float(problem.flops), float(problem.min_bytes(cast(str, row["dtype"])))
    except UsageError as e:
        return str(e), np.nan, np.nan

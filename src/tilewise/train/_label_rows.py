"""Labels to learn from, as arrays: those of all rows are in memory at once, so a row takes forty bytes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pandas as pd

from tilewise.data import Bools, TargetTable, problems_of, stacked
from tilewise.kernels import Pool
from tilewise.ops import OPS, Problem, Target

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int32]

UNLISTED_PER_PROBLEM = 4  # as many as are listed: all of them would take several times as long to learn
_UNLISTED_SEED = 0
_PERCENTILES = ("latency_p20_ms", "latency_p80_ms", "latency_ms")
MEASURED = ("kernel_name", "tflops", "bandwidth_gb_s", *_PERCENTILES)  # columns that labels are made of, besides
_RATES = ("tflops", "latency_ms", "bandwidth_gb_s")
_OF_ROWS = ("kernel", *_RATES, "spread", "is_measured")


@dataclass(frozen=True)
class LabelRows:
    """Labels of kernels of the pool that support their problem, sorted by problem dimensions, then by pool order.

    Attributes:
        target: target of all rows.
        dimensions: columns of the distinct problems, in order.
        candidates: number of kernels of the pool that support each problem, of shape (problems,).
        problem: index into `dimensions`, of shape (rows,).
        kernel: index into the pool, of shape (rows,).
        tflops, latency_ms, bandwidth_gb_s: measured values, of shape (rows,).
        spread: half the distance between the 20th and 80th percentile of a row's samples, relative to their median, of
            shape (rows,); 0 where the percentiles are missing.
        is_measured: whether the row was measured, of shape (rows,), and not drawn by :func:`with_unlisted`.
    """

    target: Target
    dimensions: pd.DataFrame
    candidates: npt.NDArray[np.int64]
    problem: Codes
    kernel: Codes
    tflops: Floats
    latency_ms: Floats
    bandwidth_gb_s: Floats
    spread: Floats
    is_measured: Bools

    @classmethod
    def of(cls, labels: TargetTable, pool: Pool) -> Self:
        """Return the rows of some labels that a model with this pool can learn from."""
        ordered = labels.ordered(pool)
        supported, candidates = ordered.support(pool)
        known, candidates = ordered.take(supported), candidates[supported]
        problem, rows = known.problem.astype(np.int32), known.rows
        first = np.flatnonzero(np.diff(problem, prepend=-1))
        return cls(
            target=labels.target,
            dimensions=rows[list(OPS[labels.target.op].column_names())].iloc[first].reset_index(drop=True),
            candidates=candidates[first],
            problem=problem,
            kernel=known.kernel(pool).astype(np.int32),
            # Copies: views would keep all columns of the labels.
            **{name: rows[name].to_numpy(dtype=np.float64, copy=True) for name in _RATES},
            spread=_spread(rows),
            is_measured=np.ones(len(rows), dtype=bool),
        )

    @classmethod
    def joined(cls, parts: list[Self]) -> Self:
        """Return the rows of parts with distinct problems; empties the list, so that few rows are in memory twice."""
        if len(parts) == 1:
            return parts.pop()
        target, starts = parts[0].target, np.cumsum([0, *(len(part.dimensions) for part in parts)])
        dimensions = stacked([part.dimensions for part in parts]).reset_index(drop=True)
        dimensions = dimensions.sort_values(list(dimensions))
        order = dimensions.index.to_numpy()
        number = np.empty(len(order), dtype=np.int32)
        number[order] = np.arange(len(order), dtype=np.int32)
        problem = np.concatenate([number[part.problem + start] for part, start in zip(parts, starts, strict=False)])
        columns: dict[str, Sequence[Any]] = {name: [getattr(part, name) for part in parts] for name in _OF_ROWS}
        candidates = np.concatenate([part.candidates for part in parts])[order]
        parts.clear()
        rows = np.argsort(problem, kind="stable")
        sorted_columns = {name: np.concatenate(columns.pop(name))[rows] for name in _OF_ROWS}
        return cls(target, dimensions.reset_index(drop=True), candidates, problem[rows], **sorted_columns)

    def __len__(self) -> int:
        return len(self.problem)

    @cached_property
    def problems(self) -> tuple[Problem, ...]:
        """The distinct problems, in order."""
        return problems_of(self.dimensions, self.target)

    def take(self, rows: npt.NDArray[np.int64]) -> Self:
        """Return some rows of every problem, in an order that keeps problems ascending."""
        return replace(self, problem=self.problem[rows], **{name: getattr(self, name)[rows] for name in _OF_ROWS})


def with_unlisted(labels: LabelRows, pool: Pool) -> LabelRows:
    """Return labels with some unlisted kernels of each problem, drawn at random, the same in every call.

    A kernel that is not listed was slower than the listed ones, or does not compute the problem. Without a row, it is
    never learnt that such a kernel should not be selected. An added row has the rate of the slowest listed kernel: the
    most that it can have, and the rate at which evaluation counts it.

    Args:
        labels: the listed kernels.
        pool: the kernels.
    """
    number, kernel, rates = labels.problem, labels.kernel, labels.tflops
    supported = np.stack([pool.supported(problem) for problem in labels.problems])
    supported[number, kernel] = False
    draw = np.where(supported, np.random.default_rng(_UNLISTED_SEED).random(supported.shape), np.inf)
    drawn = np.argsort(draw, axis=1)[:, :UNLISTED_PER_PROBLEM]
    problem, place = np.nonzero(np.isfinite(np.take_along_axis(draw, drawn, axis=1)))
    if not len(problem):
        return labels
    slowest = np.lexsort((rates, number))[np.searchsorted(number, np.arange(len(supported)))]
    rows = np.concatenate([np.arange(len(labels)), slowest[problem]])
    kernels = np.concatenate([kernel, drawn[problem, place].astype(np.int32)])
    order = np.lexsort((kernels, number[rows]))
    return replace(labels.take(rows[order]), kernel=kernels[order], is_measured=order < len(labels))


def _spread(rows: pd.DataFrame) -> Floats:
    low, high, middle = (rows[n].to_numpy(dtype=np.float64) for n in _PERCENTILES)
    spread: Floats = np.nan_to_num((high - low) / (2 * middle)).clip(min=0)
    return spread

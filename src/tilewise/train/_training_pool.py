"""The kernels of a measurement table: those that a model may choose from, their labels, and enough to judge by.

Labels are arrays: those of all rows are in memory at once, and so take forty bytes per row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt
import pandas as pd

from tilewise.data import (
    TARGET_COLUMNS,
    Bools,
    Measurements,
    TargetTable,
    backend_of_frame,
    chunks_of,
    problem_index,
    problems_of,
    stacked,
)
from tilewise.errors import DataError, KernelError
from tilewise.kernels import KernelBase, Pool, load_pool
from tilewise.ops import OPS, Problem, Target

# A selection can be judged on a problem only if this share of its supported kernels was measured: the fastest measured
# kernel is then taken for the fastest of all.
MIN_MEASURED_SHARE = 0.5
# That rule is dropped unless it leaves this share of the problems, or this many of them.
MIN_JUDGED_SHARE = 0.1
ENOUGH_JUDGED = 100

UNLISTED_PER_PROBLEM = 4  # as many as are listed: all of them would take several times as long to learn
_UNLISTED_SEED = 0
_PERCENTILES = ("latency_p20_ms", "latency_p80_ms", "latency_ms")
MEASURED = ("kernel_name", "tflops", "bandwidth_gb_s", *_PERCENTILES)  # columns that labels are made of, besides
_RATES = ("tflops", "latency_ms", "bandwidth_gb_s")
_OF_ROWS = ("kernel", *_RATES, "spread", "is_measured")
_READ = ("kernel_name", "tflops", "is_valid")  # columns that the choice of a pool reads, besides

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int32]


def pool_of(rows: pd.DataFrame | Measurements, target: Target) -> Pool:
    """Return the kernels with a valid row, so that a table of any architecture can be trained on.

    Order: as in the pool shipped for `target`, if any, then the others by name. The default kernel comes first. It is
    the shipped pool's default if that was measured; else the kernel that is valid on most problems, then the one that
    is most often the fastest, then the first by name.

    Args:
        rows: a measurement table.
        target: the target whose rows count.

    Raises:
        DataError: no row of `target` is valid.
    """
    measured, merits = set[KernelBase](), list[pd.DataFrame]()
    backend = backend_of_frame(rows) if isinstance(rows, pd.DataFrame) else rows.source.backend
    of_target = (*(c.name for c in TARGET_COLUMNS), *OPS[target.op].column_names())
    for chunk in chunks_of(rows, target, (*of_target, *_READ, *backend.column_kinds())):
        valid = chunk.take(chunk.rows["is_valid"].to_numpy()).rows
        if len(valid):
            measured |= _kernels(valid)
            merits.append(_merit(valid, target))
    if not measured:
        raise DataError(f"no valid row of {target.name}: nothing to learn from")
    shipped = _shipped(target)
    ordered = [k for k in shipped if k in measured]
    ordered += sorted(measured.difference(shipped), key=lambda k: _name(k, target))
    if not (shipped and shipped[0] in measured):
        default = _default(merits)
        ordered.sort(key=lambda k: _name(k, target) != default)  # stable: only the default moves
    return Pool(target.op, target.variant, target.dtype, tuple(ordered))


def is_judging(measured: npt.NDArray[np.int64], candidates: npt.NDArray[np.int64]) -> Bools:
    """Return whether a selection can be judged on each problem: enough of its kernels were measured.

    All problems count where hardly any meets the rule.

    Args:
        measured: number of measured kernels, of shape (problems,).
        candidates: number of kernels that support the problem, of shape (problems,).
    """
    judges = measured >= MIN_MEASURED_SHARE * candidates
    enough = judges.sum() >= min(ENOUGH_JUDGED, MIN_JUDGED_SHARE * len(judges))
    return judges if enough else np.ones(len(judges), dtype=bool)


def with_calls(judges: Bools, called: Bools) -> Bools:
    """Return the judging problems on which the calls that PyTorch makes by itself were measured as well.

    Such a call is a candidate that is hard to predict and costs much where it is mistaken. Problems without its row
    would flatter a model. They count all the same where too few others are left.

    Args:
        judges: from :func:`is_judging`, of shape (problems,).
        called: whether a problem has a row of such a call, of shape (problems,).
    """
    both = judges & called
    return both if both.sum() >= ENOUGH_JUDGED else judges


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
        number = np.argsort(order).astype(np.int32)  # the place of each problem in that order
        problem = np.concatenate([number[part.problem + start] for part, start in zip(parts, starts, strict=False)])
        columns = {name: [getattr(part, name) for part in parts] for name in _OF_ROWS}
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
    supported = pool.supported_of(labels.problems)
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


def _kernels(rows: pd.DataFrame) -> set[KernelBase]:
    backend = backend_of_frame(rows)
    parameters = rows[["kernel_name", *backend.column_kinds()]].drop_duplicates("kernel_name")
    return {backend.read_kernel({str(k): v for k, v in row.items()}) for row in parameters.to_dict("records")}


def _merit(rows: pd.DataFrame, target: Target) -> pd.DataFrame:
    """Return on how many problems each kernel is valid, and the fastest, indexed by its name."""
    kernel, names = pd.factorize(rows["kernel_name"], sort=True)
    problem, rates = problem_index(rows, target.op), rows["tflops"].to_numpy()
    best = np.full(problem.max() + 1, -np.inf)
    np.maximum.at(best, problem, rates)
    fastest, is_best = np.full(len(best), len(names)), rates == best[problem]
    np.minimum.at(fastest, problem[is_best], kernel[is_best])  # the first by name
    is_valid = np.zeros((len(best), len(names)), dtype=bool)
    is_valid[problem, kernel] = True
    counts = {"valid": is_valid.sum(axis=0), "fastest": np.bincount(fastest, minlength=len(names))}
    return pd.DataFrame(counts, index=names)


def _default(merits: Sequence[pd.DataFrame]) -> str:
    """Return the name of the default kernel; the merits are those of different problems."""
    merit = pd.concat(merits).groupby(level=0).sum().sort_index()
    return str(merit.sort_values(["valid", "fastest"], ascending=False, kind="stable").index[0])


def _shipped(target: Target) -> tuple[KernelBase, ...]:
    try:
        return load_pool(target).kernels
    except KernelError:
        return ()


def _name(kernel: KernelBase, target: Target) -> str:
    return kernel.name(target.op, target.variant, target.dtype)


def _spread(rows: pd.DataFrame) -> Floats:
    low, high, middle = (rows[n].to_numpy(dtype=np.float64) for n in _PERCENTILES)
    spread: Floats = np.nan_to_num((high - low) / (2 * middle)).clip(min=0)
    return spread

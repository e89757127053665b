"""From a measurement table to arrays: which rows are learnt from, their features, and their labels."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from tilewise.arch import HardwareProfile
from tilewise.data.labels import valid_labels
from tilewise.data.rows import Bools, is_of, pool_index, problem_index, problems_of, sort_rows, support
from tilewise.data.splits import group_keys, holdout_mask
from tilewise.errors import DataError
from tilewise.features import FeatureTable, feature_table
from tilewise.features._base import Inputs
from tilewise.features.estimate import Terms, log_work, terms_of
from tilewise.kernels.pool import Pool
from tilewise.ops import OPS, Problem, Target

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

LEAST_MEASURED = 0.5  # of the kernels that support a problem, for its best to be taken for the best of all
LEAST_JUDGES = 0.1  # of the problems ...
ENOUGH_JUDGES = 100  # ... or so many of them, however few that is of all

_PERCENTILES = ("latency_p20_ms", "latency_p80_ms", "latency_ms")


@dataclass(frozen=True)
class Table:
    """Rows to learn from, sorted by problem and, within it, by the pool's order.

    Attributes:
        target: of the rows.
        pool: their kernels.
        arch: the hardware.
        features: the columns of `matrix`: those of the op that differ between rows.
        problems: the distinct problems.
        group: (problems,) group key of each problem, numbered from 0.
        problem: (rows,) index into `problems`, ascending.
        kernel: (rows,) index into the pool.
        matrix: (rows, features).
        problem_matrix: (problems, features of role "problem").
        terms: (rows) what a launch's estimate is made of.
        log_work: (rows,) log(TFLOPS) of a launch of one clock.
        tflops, latency_ms, bandwidth_gb_s: (rows,) as measured.
        spread: (rows,) half the distance between the 20th and 80th percentile of a row's samples / their median; 0
            where it was not kept.
        judges: (problems,) whether a selection can be judged there: of the kernels that support the problem, enough
            were measured to hold its best. The others, measured with a planned few, are learnt from.
        n_holdout_problems: problems left out by the holdout rule.
    """

    target: Target
    pool: Pool
    arch: HardwareProfile
    features: FeatureTable
    problems: tuple[Problem, ...]
    group: Ints
    problem: Ints
    kernel: Ints
    matrix: Floats
    problem_matrix: Floats
    terms: Terms
    log_work: Floats
    tflops: Floats
    latency_ms: Floats
    bandwidth_gb_s: Floats
    spread: Floats
    judges: Bools
    n_holdout_problems: int

    @property
    def best(self) -> Floats:
        """(problems,) TFLOPS of the fastest kernel."""
        return cast(Floats, np.maximum.reduceat(self.tflops, np.flatnonzero(np.diff(self.problem, prepend=-1))))

    @cached_property
    def efficiency(self) -> Floats:
        """(rows,) TFLOPS / those of the problem's fastest kernel."""
        return self.tflops / self.best[self.problem]

    def rows_of(self, problems: Ints) -> Ints:
        """The rows of these problems, ascending."""
        wanted = np.zeros(len(self.problems), dtype=bool)
        wanted[problems] = True
        return np.flatnonzero(wanted[self.problem])

    def with_features(self, names: Collection[str]) -> Table:
        """The table with these features alone, in its own order."""
        kept = [i for i, name in enumerate(self.features.names) if name in names]
        of_problem = [name in names for name in self.features.of_role("problem").names]
        return replace(
            self,
            features=self.features.select(self.features.names[i] for i in kept),
            matrix=np.ascontiguousarray(self.matrix[:, kept]),
            problem_matrix=np.ascontiguousarray(self.problem_matrix[:, of_problem]),
        )

    def take(self, rows: Ints) -> Table:
        """The table of some rows, ascending: as if no other had been measured."""
        kept, problem = np.unique(self.problem[rows], return_inverse=True)
        return replace(
            self,
            problems=tuple(self.problems[i] for i in kept),
            group=np.unique(self.group[kept], return_inverse=True)[1].astype(np.int64),
            problem=problem.astype(np.int64),
            kernel=self.kernel[rows],
            matrix=self.matrix[rows],
            problem_matrix=self.problem_matrix[kept],
            terms=self.terms.take(rows),
            log_work=self.log_work[rows],
            tflops=self.tflops[rows],
            latency_ms=self.latency_ms[rows],
            bandwidth_gb_s=self.bandwidth_gb_s[rows],
            spread=self.spread[rows],
            judges=self.judges[kept],
        )


def build_table(
    frame: pd.DataFrame,
    target: Target,
    pool: Pool,
    arch: HardwareProfile,
    holdout_fraction: float,
    features: FeatureTable | None = None,
) -> Table:
    """Choose the rows to learn from and compute their features.

    Kept are valid rows of the target, as all runs label them, of kernels in the pool that support the problem;
    problems of the holdout are dropped here, whatever table was handed in. `features` are the columns of the matrix;
    None: those of the op that differ between rows or between kernels.

    Raises:
        DataError: nothing is left to learn from.
        KernelError: two kernels of the pool cannot be told apart by the features.
    """
    rows = frame[is_of(frame, target)]
    if not len(rows):
        raise DataError(f"no row of {target.name} to learn from")
    held = holdout_mask(target.op, group_keys(target.op, rows), holdout_fraction)
    n_holdout = len(rows.loc[held, list(OPS[target.op].column_names())].drop_duplicates())
    rows = rows[~held]
    rows = valid_labels(rows, target.op)
    rows = sort_rows(rows, target, pool)
    supported, candidates = support(rows, target, pool)
    rows, candidates = rows[supported], candidates[supported]
    if not len(rows):
        raise DataError(
            f"no valid row of {target.name} with a kernel of the pool outside the holdout ({n_holdout} problems)"
        )
    problems, problem = problems_of(rows, target), problem_index(rows, target.op)
    seen = _inputs(rows, target, pool, arch)
    features, matrix = _matrix(seen, pool, arch) if features is None else (features, features.compute(seen))
    features.check_distinct(pool, arch)
    first = np.flatnonzero(np.diff(problem, prepend=-1))
    of_problem = [f.role == "problem" for f in features.features]
    keys = np.array([p.group_key for p in problems], dtype=np.int64)
    return Table(
        target=target,
        pool=pool,
        arch=arch,
        features=features,
        problems=problems,
        group=np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64),
        problem=problem,
        kernel=pool_index(rows, pool),
        matrix=matrix,
        problem_matrix=matrix[first][:, of_problem],
        terms=terms_of(features, seen),
        log_work=log_work(seen),
        tflops=rows["tflops"].to_numpy(dtype=np.float64),
        latency_ms=rows["latency_ms"].to_numpy(dtype=np.float64),
        spread=_spread(rows),
        bandwidth_gb_s=rows["bandwidth_gb_s"].to_numpy(dtype=np.float64),
        judges=judging(np.bincount(problem), candidates[first]),
        n_holdout_problems=n_holdout,
    )


def judging(measured: Ints, candidates: Ints) -> Bools:
    """:attr:`Table.judges`; where hardly a problem can be judged by, all are, for want of better.

    Args:
        measured: (problems,) number of kernels.
        candidates: (problems,) number of kernels that support it.
    """
    judges = measured >= LEAST_MEASURED * candidates
    enough = judges.sum() >= min(ENOUGH_JUDGES, LEAST_JUDGES * len(judges))
    return judges if enough else np.ones(len(judges), dtype=bool)


def numbered(problem: Ints) -> Ints:
    """(rows,) the problems of rows, whose rows stand together, numbered from 0 without gaps."""
    return np.cumsum(np.diff(problem, prepend=-1) != 0) - 1


def _spread(rows: pd.DataFrame) -> Floats:
    low, high, middle = (rows[n].to_numpy(dtype=np.float64) for n in _PERCENTILES)
    spread: Floats = np.nan_to_num((high - low) / (2 * middle)).clip(min=0)
    return spread


def _inputs(rows: pd.DataFrame, target: Target, pool: Pool, arch: HardwareProfile) -> Inputs:
    problem = {n: rows[n].to_numpy() for n in OPS[target.op].column_names()}
    kernel = {n: rows[n].to_numpy() for n in pool.columns}
    return feature_table(target.op).rows_of(problem, kernel, variant=target.variant, dtype=target.dtype, arch=arch)


def _matrix(seen: Inputs, pool: Pool, arch: HardwareProfile) -> tuple[FeatureTable, Floats]:
    """The features that differ between rows: constants (hardware, depth of a 2D table) would only cost time.

    Those that differ between the pool's kernels are kept as well: it may have some that no row is of.
    """
    features = feature_table(pool.op)
    matrix, kernels = features.compute(seen), features.of_role("kernel")
    told = {n for n, column in zip(kernels.names, kernels.of_pool(pool, arch).T, strict=True) if np.ptp(column) > 0}
    kept = (matrix.min(axis=0) < matrix.max(axis=0)) | np.isin(features.names, list(told))
    return features.select(np.array(features.names)[kept].tolist()), np.ascontiguousarray(matrix[:, kept])

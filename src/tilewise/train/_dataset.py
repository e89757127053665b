"""Training tables: the arrays of rows, features and measurements that trees learn from."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from tilewise.arch import HardwareProfile
from tilewise.data import (
    TARGET_COLUMNS,
    Bools,
    Measurements,
    TargetTable,
    chunks_of,
    held_out,
    keys_digest,
    split_keys,
)
from tilewise.errors import DataError
from tilewise.features import FeatureRows, FeatureTable, Launches, Terms, feature_table
from tilewise.kernels import Pool
from tilewise.metrics import Numbers
from tilewise.ops import OPS, Problem, Target
from tilewise.train._training_pool import MEASURED, Codes, LabelRows, is_judging, with_calls, with_unlisted

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

_OF_RUN = ("run_id", "measured_at", "is_valid")  # columns that labels are made from, besides
_KEPT_TERMS = 4_000_000  # rows of a table that keeps its cost terms: 300 bytes each, and calibrations read them often


@dataclass(frozen=True)
class Split:
    """The problems that a training kept apart, for its manifest: the holdout's share alone is not believed.

    Attributes:
        n_holdout_problems: number of problems that the holdout rule removed.
        group_keys: digest of all group keys of the target, see :func:`tilewise.data.keys_digest`.
        holdout_keys: digest of those that the holdout rule removed.
    """

    n_holdout_problems: int
    group_keys: str
    holdout_keys: str

    @classmethod
    def of(cls, rows: TargetTable, fraction: float) -> Split:
        """Return the split of a target's rows with this share held out."""
        holdout = rows.holdout(fraction)
        return cls(holdout.n_problems, keys_digest(rows.distinct_keys), keys_digest(holdout.distinct_keys))


@dataclass(frozen=True)
class Table:
    """Training rows, sorted by problem and, within a problem, by the pool's order.

    Attributes:
        target: target of all rows.
        pool: the kernels.
        arch: the hardware.
        features: the op's features that differ between rows.
        problems: the distinct problems.
        group: number of each problem's split key, from 0, of shape (problems,).
        problem: index into `problems`, ascending, of shape (rows,).
        kernel: index into the pool, of shape (rows,).
        launches: the rows' launches, from which features and cost terms are computed.
        problem_matrix: features of role "problem", of shape (problems, features).
        work: log(TFLOPS) of a launch of one clock, of shape (problems,).
        tflops, latency_ms, bandwidth_gb_s: measured values, of shape (rows,).
        spread, is_measured: of shape (rows,), see :class:`LabelRows`.
        judges: whether a selection can be judged on the problem, of shape (problems,), see :func:`is_judging` and
            :func:`with_calls`. The other problems, measured with a few planned kernels, are only learnt from.
        is_own: whether the problem is of the target, of shape (problems,), and not of a teacher, see
            :func:`with_teachers`.
        split: what the holdout rule removed.
    """

    target: Target
    pool: Pool
    arch: HardwareProfile
    features: FeatureTable
    problems: tuple[Problem, ...]
    group: Ints
    problem: Codes
    kernel: Codes
    launches: Launches
    problem_matrix: Floats
    work: Floats
    tflops: Floats
    latency_ms: Floats
    bandwidth_gb_s: Floats
    spread: Floats
    is_measured: Bools
    judges: Bools
    is_own: Bools
    split: Split

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the table for another process; features hold functions, so they travel by name."""
        state = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "features"}
        return _restored, (state, self.features.op, self.features.names)

    @property
    def matrix(self) -> Floats:
        """Compute the feature values of all rows at once, of shape (rows, features)."""
        return self.launches.matrix(self.features)

    @property
    def feature_rows(self) -> FeatureRows:
        """The feature values as :class:`~tilewise.train.Bins` reads them, in batches."""
        return FeatureRows(self.launches, self.features)

    @cached_property
    def terms(self) -> Terms:
        """Cost terms of all rows at once."""
        return self.launches.terms(self.features)

    def terms_of(self, rows: Ints) -> Terms:
        """Return the cost terms of some ascending rows."""
        is_kept = len(self.problem) <= _KEPT_TERMS
        return self.terms.take(rows) if is_kept else self.launches.terms(self.features, rows)

    @property
    def log_work(self) -> Floats:
        """:attr:`work` of each row's problem, of shape (rows,)."""
        return self.work[self.problem]

    @property
    def best(self) -> Floats:
        """TFLOPS of each problem's fastest kernel, of shape (problems,)."""
        return cast(Floats, np.maximum.reduceat(self.tflops, np.flatnonzero(np.diff(self.problem, prepend=-1))))

    @cached_property
    def efficiency(self) -> Floats:
        """TFLOPS relative to the problem's fastest kernel, of shape (rows,)."""
        return self.tflops / self.best[self.problem]

    @property
    def judges_calls(self) -> bool:
        """Return whether every problem that judges has a row of the calls that PyTorch makes by itself."""
        called = np.bincount(self.problem, _is_call(self.pool)[self.kernel]) > 0
        return bool(self.judges.any() and called[self.judges].all())

    @property
    def group_keys(self) -> Ints:
        """Group key of each problem, of shape (problems, dimensions)."""
        return np.array([p.group_key for p in self.problems], dtype=np.int64)

    def weights(self, teacher_weight: float) -> Floats:
        """Return the weight of each problem, of shape (problems,): 1, or `teacher_weight` for those of teachers."""
        return np.where(self.is_own, 1.0, teacher_weight)

    def rows_of(self, problems: Ints) -> Ints:
        """Return the ascending row indices of these problems."""
        wanted = np.zeros(len(self.problems), dtype=bool)
        wanted[problems] = True
        return np.flatnonzero(wanted[self.problem])

    def measured_rows_of(self, problems: Ints) -> Ints:
        """Return the ascending indices of the rows of these problems that selections are judged by."""
        rows = self.rows_of(problems)
        return rows[self.is_measured[rows]]

    def with_features(self, names: Collection[str]) -> Table:
        """Return the table with only the features `names`, in the table's own order."""
        kept = [name for name in self.features.names if name in names]
        of_problem = [name in names for name in self.features.of_role("problem").names]
        return replace(
            self,
            features=self.features.select(kept),
            problem_matrix=np.ascontiguousarray(self.problem_matrix[:, of_problem]),
        )

    def take(self, rows: Ints) -> Table:
        """Return the table of some ascending rows, as if no other row had been measured."""
        kept, problem = np.unique(self.problem[rows], return_inverse=True)
        return replace(
            self,
            problems=tuple(self.problems[i] for i in kept),
            group=np.unique(self.group[kept], return_inverse=True)[1].astype(np.int64),
            problem=problem.astype(np.int32),
            kernel=self.kernel[rows],
            launches=self.launches.take(rows),
            problem_matrix=self.problem_matrix[kept],
            work=self.work[kept],
            tflops=self.tflops[rows],
            latency_ms=self.latency_ms[rows],
            bandwidth_gb_s=self.bandwidth_gb_s[rows],
            spread=self.spread[rows],
            is_measured=self.is_measured[rows],
            judges=self.judges[kept],
            is_own=self.is_own[kept],
        )

    def with_pool(self, pool: Pool) -> Table:
        """Return the rows of the kernels that `pool` has too, numbered as there."""
        place = {kernel: i for i, kernel in enumerate(pool.kernels)}
        kernel = np.array([place.get(k, -1) for k in self.pool.kernels], dtype=np.int32)[self.kernel]
        rows = np.lexsort((kernel, self.problem))
        rows = rows[kernel[rows] >= 0]
        return replace(self.take(rows), pool=pool, kernel=kernel[rows])


def _restored(state: Mapping[str, object], op: str, names: Sequence[str]) -> Table:
    return Table(features=feature_table(op).select(names), **state)  # type: ignore[arg-type]  # what __reduce__ took


def build_table(
    rows: pd.DataFrame | Measurements,
    target: Target,
    pool: Pool,
    arch: HardwareProfile,
    holdout_fraction: float,
    features: FeatureTable | None = None,
) -> Table:
    """Choose the training rows and compute their features.

    Training rows are the valid labels (see :func:`tilewise.data.labelled`) of the target whose kernels belong to the
    pool and support the problem. Holdout problems are dropped here, even if the table contains them.

    Args:
        rows: a measurement table; only its labels are ever all in memory.
        target: target to train for.
        pool: kernels that the model may choose from.
        arch: the hardware of the target.
        holdout_fraction: share of split keys that are held out.
        features: columns of the matrix; None: those of the op within an arch that differ between rows or kernels.

    Raises:
        DataError: no training row is left.
        KernelError: the features do not distinguish two kernels of the pool.
    """
    of_problem = list(OPS[target.op].column_names())
    problems, parts = list[pd.DataFrame](), list[LabelRows]()
    for chunk in chunks_of(rows, target, (*(c.name for c in TARGET_COLUMNS), *of_problem, *MEASURED, *_OF_RUN)):
        problems.append(chunk.rows[of_problem].drop_duplicates())
        found = chunk.training(holdout_fraction).labelled().rows[[*of_problem, *MEASURED]]
        found = found.astype(dict.fromkeys(found.select_dtypes("str"), "category"))  # numbers sort sooner than text
        parts.append(LabelRows.of(TargetTable(target, found), pool))
    if not any(map(len, problems)):
        raise DataError(f"no row of {target.name} to learn from")
    split = Split.of(TargetTable(target, pd.concat(problems)), holdout_fraction)
    labels = LabelRows.joined(parts)
    if not len(labels):
        raise DataError(
            f"no valid row of {target.name} with a kernel of the pool outside the holdout "
            f"({split.n_holdout_problems} problems)"
        )
    if pool.backend.lists_fastest:
        labels = with_unlisted(labels, pool)
    return _table_of(labels, pool, arch, features, split)


def _table_of(
    labels: LabelRows, pool: Pool, arch: HardwareProfile, features: FeatureTable | None, split: Split
) -> Table:
    """Compute the features of labels."""
    target, problem, kernel = labels.target, labels.problem, labels.kernel
    first = np.flatnonzero(np.diff(problem, prepend=-1))
    dimensions = {str(name): column.to_numpy() for name, column in labels.dimensions.items()}
    launches = Launches.of(
        dimensions, pool.columns, {"variant": target.variant, "dtype": target.dtype, "arch": arch}, problem, kernel
    )
    if features is None:
        features = feature_table(pool.op).within_arch()
        features = features.select(varying(features, launches, pool, arch))
    features.check_distinct(pool, arch)
    keys = split_keys(target, np.array([p.group_key for p in labels.problems], dtype=np.int64))
    return Table(
        target=target,
        pool=pool,
        arch=arch,
        features=features,
        problems=labels.problems,
        group=np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64),
        problem=problem,
        kernel=kernel,
        launches=launches,
        problem_matrix=launches.matrix(features.of_role("problem"), first),
        work=launches.log_work(features, first),
        tflops=labels.tflops,
        latency_ms=labels.latency_ms,
        spread=labels.spread,
        is_measured=labels.is_measured,
        bandwidth_gb_s=labels.bandwidth_gb_s,
        judges=with_calls(
            is_judging(np.bincount(problem[labels.is_measured]), labels.candidates),
            np.bincount(problem, _is_call(pool)[kernel]) > 0,
        ),
        is_own=np.ones(len(first), dtype=bool),
        split=split,
    )


def with_teachers(table: Table, teachers: Sequence[Table], holdout_fraction: float) -> Table:
    """Return a table with the rows of other targets, which are learnt from and never judge.

    A kernel of a teacher counts as the target's kernel with the same parameters; other kernels are left out, and so are
    the problems that the target holds out. Features that are constants of one target, such as its hardware, tell the
    targets apart; those `across_archs` are kept if the archs differ. All tables need every feature of the op.

    Args:
        table: the rows of the target.
        teachers: rows of other targets of the op.
        holdout_fraction: share of split keys that are held out.

    Raises:
        DataError: a teacher has no kernel of the target.
    """
    parts = [table]
    for teacher in teachers:
        known = teacher.with_pool(table.pool)
        if not len(known.problem):
            raise DataError(
                f"{teacher.target.name} has no kernel of {table.target.name}, so it teaches nothing; leave it out"
            )
        learnt = np.flatnonzero(~held_out(table.target, known.group_keys, holdout_fraction))
        known = known.take(known.rows_of(learnt))
        none = np.zeros(len(known.problems), dtype=bool)
        parts.append(replace(known, judges=none, is_own=none))
    offsets = np.cumsum([0, *(len(part.problems) for part in parts)])
    joined: dict[str, Any] = {
        name: np.concatenate([getattr(part, name) for part in parts])
        for name in ("kernel", "problem_matrix", "work", "tflops", "latency_ms", "bandwidth_gb_s",
                     "spread", "is_measured", "judges", "is_own")
    }  # fmt: skip
    keys = split_keys(table.target, np.concatenate([part.group_keys for part in parts]))
    whole = replace(
        table,
        problems=tuple(problem for part in parts for problem in part.problems),
        group=np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64),
        problem=np.concatenate([p.problem + offset for p, offset in zip(parts, offsets, strict=False)], dtype=np.int32),
        launches=Launches.joined([part.launches for part in parts]),
        **joined,
    )
    names = varying(whole.features, whole.launches, table.pool, table.arch)
    if len({part.arch.name for part in parts}) == 1:
        names = tuple(name for name in whole.features.within_arch().names if name in names)
    return whole.with_features(names)


def renumbered(problem: Numbers) -> Ints:
    """Return problem numbers of shape (rows,) from 0 without gaps; equal numbers must be adjacent."""
    return np.cumsum(np.diff(problem, prepend=-1) != 0) - 1


def _is_call(pool: Pool) -> Bools:
    """Return which kernels of a pool are calls that PyTorch makes by itself, of shape (kernels,)."""
    return np.array([pool.backend.source_of(kernel).in_pytorch for kernel in pool.kernels])


def varying(features: FeatureTable, launches: Launches, pool: Pool, arch: HardwareProfile) -> tuple[str, ...]:
    """Return the features that differ between rows, or between the pool's kernels, in the table's order.

    Constants, such as the hardware or the depth of a 2D table, would only cost time. Features that differ between the
    pool's kernels are kept too, because the pool may have kernels without a row.
    """
    kernels = features.of_role("kernel")
    columns = zip(kernels.names, kernels.of_pool(pool, arch).T, strict=True)
    kept = {name for name, column in columns if np.ptp(column) > 0}
    kept |= launches.varying(features.select(name for name in features.names if name not in kept))
    return tuple(name for name in features.names if name in kept)

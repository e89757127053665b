"""The rows of one target, and the only way from a measurement table to training rows or holdout rows.

The chain is: rows of the target, holdout rule, valid labels, order, pool support. Every consumer (training, evaluation,
gate, campaigns, reports) takes the steps that it needs from here, so that no two of them can disagree.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
import numpy.typing as npt
import pandas as pd

from tilewise.data._labels import valid_labels
from tilewise.data._rows import is_of, pool_index, problem_index, problems_of, sort_rows, superseded, support, taken
from tilewise.data._splits import group_keys, held_out, split_keys
from tilewise.kernels import Pool
from tilewise.ops import OPS, Problem, Target

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class TargetTable:
    """Measured rows of one target; every method returns a new table and leaves this one as it is.

    Guarantees:
        * ``training(f)`` and ``holdout(f)`` share no split key, whatever rows, runs or pools the table has: the rule
          depends on the split key alone. Together they hold every row.
        * A smaller fraction's holdout is part of a larger one's.
        * A problem lies as a whole, with all its kernels and runs, on one side.

    Attributes:
        target: the target of all rows.
        rows: columns of :func:`tilewise.data.measurement_columns`; the frame must not be changed in place.
    """

    target: Target
    rows: pd.DataFrame

    @classmethod
    def of(cls, frame: pd.DataFrame, target: Target) -> Self:
        """Return the rows of `target` in a measurement table that may hold other targets.

        Times of programs that a later version has superseded are left out, as preparation does, so that a table gives
        the same labels whether it was prepared or not.
        """
        rows = taken(frame, is_of(frame, target))
        return cls(target, taken(rows, ~superseded(rows, target.op, OPS[target.op].column_names())))

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, rows: Bools) -> Self:
        """Return the table of the rows selected by a mask of shape (rows,)."""
        return type(self)(self.target, taken(self.rows, rows))

    def is_holdout(self, fraction: float) -> Bools:
        """Return which rows belong to a holdout problem, of shape (rows,).

        Args:
            fraction: share of the split keys that is held out, see :func:`tilewise.data.held_out`.
        """
        if not len(self.rows):
            return np.zeros(0, dtype=bool)
        return held_out(self.target, self.keys, fraction)

    def holdout(self, fraction: float) -> Self:
        """Return the rows of the holdout problems: evaluation may use them, training must not."""
        return self.take(self.is_holdout(fraction))

    def training(self, fraction: float) -> Self:
        """Return the rows of all problems outside the holdout."""
        return self.take(~self.is_holdout(fraction))

    def labelled(self) -> Self:
        """Return one row per problem and valid kernel: the label that all its runs agree on.

        See :func:`tilewise.data.labelled` for how runs are combined.
        """
        return type(self)(self.target, valid_labels(self.rows, self.target.op))

    def ordered(self, pool: Pool) -> Self:
        """Return one row per problem and kernel, sorted by problem dimensions, then by pool order.

        Kernels outside the pool come last within their problem, by name. The index starts from 0.
        """
        return type(self)(self.target, sort_rows(self.rows, self.target, pool))

    def support(self, pool: Pool) -> tuple[Bools, Ints]:
        """Return which rows' kernels belong to `pool` and support their problem, by the dispatcher's rules.

        Returns:
            A mask of shape (rows,), and per row the number of kernels of the pool that support its problem.
        """
        return support(self.rows, self.target, pool)

    def supported(self, pool: Pool) -> Self:
        """Return the rows whose kernels belong to `pool` and support their problem."""
        return self.take(self.support(pool)[0])

    @cached_property
    def keys(self) -> Ints:
        """Group key of each row, of shape (rows, dimensions)."""
        return group_keys(self.target.op, self.rows)

    @property
    def split_keys(self) -> Ints:
        """Split key of each row, of shape (rows, dimensions), see :func:`tilewise.data.split_keys`."""
        return split_keys(self.target, self.keys)

    @cached_property
    def distinct_keys(self) -> Ints:
        """Distinct group keys, sorted, of shape (keys, dimensions)."""
        return np.unique(self.keys, axis=0)

    @cached_property
    def problems(self) -> tuple[Problem, ...]:
        """Distinct problems, in the order of first appearance."""
        return problems_of(self.rows, self.target)

    @cached_property
    def problem(self) -> Ints:
        """Index of each row's problem in :attr:`problems`, of shape (rows,)."""
        return problem_index(self.rows, self.target.op)

    @property
    def n_problems(self) -> int:
        """Number of distinct problems."""
        return len(self.rows[list(OPS[self.target.op].column_names())].drop_duplicates())

    @property
    def tflops(self) -> Floats:
        """Measured TFLOPS of each row, of shape (rows,)."""
        return np.asarray(self.rows["tflops"], dtype=np.float64)

    def kernel(self, pool: Pool) -> Ints:
        """Return the index of each row's kernel in `pool`, of shape (rows,); -1 where it is not in the pool."""
        return pool_index(self.rows, pool)

    def problem_columns(self) -> dict[str, npt.NDArray[np.generic]]:
        """Return the problem's dimensions of each row, by column name, of shape (rows,) each."""
        return {name: self.rows[name].to_numpy() for name in OPS[self.target.op].column_names()}

    def kernel_columns(self, pool: Pool) -> dict[str, npt.NDArray[np.generic]]:
        """Return the kernel's parameters of each row, by the pool's column names, of shape (rows,) each."""
        return {name: self.rows[name].to_numpy() for name in pool.columns}

    def draw(self, count: int, seed: int) -> Self:
        """Return all rows of `count` problems drawn by `seed`; of all problems where there are fewer.

        The index starts from 0.
        """
        drawn = np.random.default_rng(seed).permutation(int(self.problem.max()) + 1)[:count]
        return type(self)(self.target, self.rows[np.isin(self.problem, drawn)].reset_index(drop=True))

"""The launches of many rows: two small numbers per row, from which features and cost terms are computed.

Features take some 600 bytes per row, and the bins that trees learn from an eighth of that. So features are computed in
batches when they are asked for, which takes about a microsecond per row, and need never be all in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Literal, Self

import numpy as np
import numpy.typing as npt

from tilewise.features._cost_model import Terms, log_work, terms_of
from tilewise.features._feature_table import Conditions, FeatureTable, Inputs
from tilewise.features._tables_by_op import feature_table

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
_Codes = npt.NDArray[np.int32]

BATCH_ROWS = 8192  # intermediate results of so many rows stay in the processor's cache, which halves the time


@dataclass(frozen=True)
class _Group:
    """Launches on one arch.

    Attributes:
        problems: columns of the distinct problems, by name, of shape (problems,).
        kernels: columns of the pool's kernels, by name, of shape (kernels,).
        conditions: variant, dtype and arch.
        problem, kernel: place of each row's problem and kernel in these columns, of shape (rows,).
    """

    problems: Mapping[str, npt.NDArray[np.generic]]
    kernels: Mapping[str, npt.NDArray[np.generic]]
    conditions: Conditions
    problem: _Codes
    kernel: _Codes

    def inputs(self, features: FeatureTable, rows: Ints) -> Inputs:
        problem = {name: column[self.problem[rows]] for name, column in self.problems.items()}
        kernel = {name: column[self.kernel[rows]] for name, column in self.kernels.items()}
        return features.rows_of(problem, kernel, **self.conditions)


@dataclass(frozen=True)
class Launches:
    """A problem and a kernel per row. Rows of several targets follow each other, see :meth:`joined`."""

    groups: tuple[_Group, ...]

    @classmethod
    def of(
        cls,
        problems: Mapping[str, npt.NDArray[np.generic]],
        kernels: Mapping[str, npt.NDArray[np.generic]],
        conditions: Conditions,
        problem: npt.NDArray[np.integer],
        kernel: npt.NDArray[np.integer],
    ) -> Self:
        """Return the launches of one target.

        Args:
            problems: columns of its distinct problems, by name, of shape (problems,).
            kernels: columns of its pool, by name, of shape (kernels,).
            conditions: variant, dtype and arch.
            problem: place of each row's problem in its columns, of shape (rows,).
            kernel: place of each row's kernel in its columns, of shape (rows,).
        """
        codes = (numbers.astype(np.int32, copy=False) for numbers in (problem, kernel))
        return cls((_Group(problems, kernels, conditions, *codes),))

    @classmethod
    def joined(cls, parts: Sequence[Launches]) -> Self:
        """Return the rows of all parts, in their order."""
        return cls(tuple(group for part in parts for group in part.groups))

    def __len__(self) -> int:
        return int(self._ends[-1])

    @cached_property
    def _ends(self) -> Ints:
        """Number of the row behind each group, of shape (groups,)."""
        return np.cumsum([len(group.problem) for group in self.groups])

    def take(self, rows: Ints) -> Self:
        """Return the launches of some ascending rows."""
        return type(self)(
            tuple(
                replace(group, problem=group.problem[places], kernel=group.kernel[places])
                for group, places in zip(self.groups, self._places(rows), strict=True)
            )
        )

    def matrix(self, features: FeatureTable, rows: Ints | None = None) -> Floats:
        """Compute the features of some ascending rows, or of all, of shape (rows, features)."""
        matrix = np.empty((len(self) if rows is None else len(rows), len(features.names)))
        for start, inputs in self._batches(features, rows):
            matrix[start : start + inputs.n_rows] = features.compute(inputs)
        return matrix

    def terms(self, features: FeatureTable, rows: Ints | None = None) -> Terms:
        """Compute the inputs of the cost model for some ascending rows, or for all."""
        count = len(self) if rows is None else len(rows)
        costs, drivers = np.empty((count, len(features.costs))), np.empty((count, len(features.drivers)))
        program = np.empty(count, dtype=np.int64)
        for start, inputs in self._batches(features, rows):
            some = slice(start, start + inputs.n_rows)
            terms = terms_of(features, inputs)
            costs[some], drivers[some], program[some] = terms.costs, terms.drivers, terms.program
        return Terms(costs, drivers, program)

    def log_work(self, features: FeatureTable, rows: Ints | None = None) -> Floats:
        """Compute log(TFLOPS) of a launch of one clock for some ascending rows, or for all, of shape (rows,)."""
        works = np.empty(len(self) if rows is None else len(rows))
        for start, inputs in self._batches(features, rows):
            works[start : start + inputs.n_rows] = log_work(inputs)
        return works

    def varying(self, features: FeatureTable) -> set[str]:
        """Return the names of the features that differ between rows; each is computed for as many rows as tell."""
        problems, kernels, rows = self._one_of_each("problem"), self._one_of_each("kernel"), np.arange(len(self))
        return (
            self._varying(features.of_role("problem", "hardware"), problems)
            | self._varying(features.of_role("kernel"), kernels)
            | self._varying(features.of_role("interaction"), rows)
        )

    def _varying(self, features: FeatureTable, rows: Ints) -> set[str]:
        left, found = features, set[str]()
        first = dict(zip(features.names, self.matrix(features, rows[:1])[0], strict=True))
        for start in range(0, len(rows), BATCH_ROWS):
            if not left.names:
                break
            matrix = self.matrix(left, rows[start : start + BATCH_ROWS])
            differs = (matrix != [first[name] for name in left.names]).any(axis=0)
            found |= {name for name, is_other in zip(left.names, differs, strict=True) if is_other}
            left = left.select(name for name in left.names if name not in found)
        return found

    def _one_of_each(self, name: Literal["problem", "kernel"]) -> Ints:
        """Return a row of each problem, or of each kernel, of each arch, ascending."""
        rows = list[Ints]()
        for group, end in zip(self.groups, self._ends, strict=True):
            codes: _Codes = getattr(group, name)
            row = np.full(int(codes.max(initial=-1)) + 1, -1)
            row[codes] = np.arange(end - len(codes), end)
            rows.append(np.sort(row[row >= 0]))
        return np.concatenate(rows)

    def _batches(self, features: FeatureTable, rows: Ints | None) -> Iterator[tuple[int, Inputs]]:
        """Yield inputs of at most :data:`BATCH_ROWS` rows, each with the place of its first row among `rows`."""
        for start in range(0, len(self) if rows is None else len(rows), BATCH_ROWS):
            end = start + BATCH_ROWS
            batch = np.arange(start, min(end, len(self))) if rows is None else rows[start:end]
            for group, places in zip(self.groups, self._places(batch), strict=True):
                if len(places):
                    yield start, group.inputs(features, places)
                    start += len(places)

    def _places(self, rows: Ints) -> list[Ints]:
        """Return the ascending rows' places within each group."""
        parts = np.split(rows, np.searchsorted(rows, self._ends[:-1]))
        return [part - start for part, start in zip(parts, (0, *self._ends[:-1]), strict=True)]


@dataclass(frozen=True)
class FeatureRows:
    """The feature matrix of launches, computed as it is read."""

    launches: Launches
    features: FeatureTable

    def __reduce__(self) -> tuple[object, ...]:
        """Pickle the rows for another process; features hold functions, so they travel by name."""
        return _restored, (self.launches, self.features.op, self.features.names)

    def __len__(self) -> int:
        return len(self.launches)

    def __getitem__(self, rows: slice | Ints) -> Floats:
        """Compute some ascending rows, of shape (rows, features)."""
        numbers = np.arange(*rows.indices(len(self))) if isinstance(rows, slice) else rows
        return self.launches.matrix(self.features, numbers)

    def batches(self) -> Iterator[Floats]:
        """Yield the matrix in parts of at most :data:`BATCH_ROWS` rows."""
        yield from (self[start : start + BATCH_ROWS] for start in range(0, len(self), BATCH_ROWS))


def _restored(launches: Launches, op: str, names: Sequence[str]) -> FeatureRows:
    return FeatureRows(launches, feature_table(op).select(names))

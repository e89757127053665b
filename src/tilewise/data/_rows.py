"""Row selection in measurement tables: by target, by pool, and by the dispatcher's support rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
import numpy.typing as npt
import pandas as pd
import pyarrow as arrow

from tilewise.data._columns import PROGRAMS_COLUMN, TARGET_COLUMNS
from tilewise.kernels import Pool, compared_versions
from tilewise.ops import OPS, Problem, Target

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def is_of(frame: pd.DataFrame, target: Target) -> Bools:
    """Return which rows belong to `target`, of shape (rows,)."""
    of_column = [frame[c.name] == getattr(target, c.name) for c in TARGET_COLUMNS]
    return cast(Bools, np.logical_and.reduce([mask.to_numpy(dtype=bool, na_value=False) for mask in of_column]))


def versions_of(frame: pd.DataFrame, op: str) -> Ints:
    """Return the version of the programs by which each row's times are compared, of shape (rows,).

    Args:
        frame: rows of one target; without the column, all have the first version.
        op: the target's op.
    """
    if PROGRAMS_COLUMN not in frame:
        return np.ones(len(frame), dtype=np.int64)
    versions: Ints = frame[PROGRAMS_COLUMN].fillna(1).to_numpy(dtype=np.int64)
    if not len(frame) or versions.min() == versions.max():
        return versions  # rows of one problem are compared with each other alone
    return compared_versions(op, versions, {name: frame[name].to_numpy() for name in OPS[op].column_names()})


def superseded(frame: pd.DataFrame, op: str, of_problem: Sequence[str]) -> Bools:
    """Return which rows a later version of the programs supersedes, of shape (rows,).

    A row is superseded if its kernel was measured on its problem with a later version; the outcome does not matter.

    Args:
        frame: rows of one target, all of each problem.
        op: the target's op.
        of_problem: columns that tell problems apart.
    """
    version = versions_of(frame, op)
    if not len(frame) or version.min() == version.max():
        return np.zeros(len(frame), dtype=bool)
    number = numbered(frame, [*of_problem, "kernel_name"])[0]
    latest = np.zeros(number.max() + 1, dtype=np.int64)
    np.maximum.at(latest, number, version)
    return version < latest[number]


def taken(rows: pd.DataFrame, mask: Bools) -> pd.DataFrame:
    """Return the rows selected by a mask of shape (rows,); all of them are not copied."""
    return rows if mask.all() else rows[mask]


def picked(table: arrow.Table, rows: Ints) -> arrow.Table:
    """Return some ascending rows; neighbours are not copied, and the rows of a problem, or of a chunk, mostly are."""
    if len(rows) and rows[-1] - rows[0] == len(rows) - 1:
        return table.slice(rows[0], len(rows))
    return table.take(rows)


def pool_index(rows: pd.DataFrame, pool: Pool) -> Ints:
    """Return the index of each row's kernel in the pool, of shape (rows,); -1 for kernels outside the pool."""
    place = {name: i for i, name in enumerate(pool.names)}
    kernel, names = pd.factorize(rows["kernel_name"])
    places: Ints = np.array([*(place.get(name, -1) for name in names), -1], dtype=np.int64)
    return cast(Ints, places[kernel])


def sort_rows(rows: pd.DataFrame, target: Target, pool: Pool) -> pd.DataFrame:
    """Sort by problem dimensions, then by pool order, with kernels outside the pool last.

    Only the first row of each problem and kernel remains. The index starts from 0.
    """
    names = list(OPS[target.op].column_names())
    problem, first = numbered(rows, names)
    rank = np.empty(len(first), dtype=np.int64)
    rank[rows[names].iloc[first].reset_index(drop=True).sort_values(names).index] = np.arange(len(first))
    kernel, place = pd.factorize(rows["kernel_name"], sort=True)[0], pool_index(rows, pool)
    keys = kernel, np.where(place < 0, len(pool), place), rank[problem]
    order = np.lexsort(keys)
    is_first = np.diff(kernel[order], prepend=-1) | np.diff(keys[-1][order], prepend=-1)
    return rows.iloc[order[is_first != 0]].reset_index(drop=True)


def problems_of(rows: pd.DataFrame, target: Target) -> tuple[Problem, ...]:
    """Return the distinct problems, in the order of first appearance."""
    names = list(OPS[target.op].column_names())
    distinct = rows[names].drop_duplicates()
    return tuple(
        OPS[target.op](**dict(zip(names, row, strict=True))) for row in distinct.itertuples(index=False, name=None)
    )


def problem_index(rows: pd.DataFrame, op: str) -> Ints:
    """Return the number of each row's problem, of shape (rows,), counted from 0 by first appearance."""
    return numbered(rows, OPS[op].column_names())[0]


def numbered(rows: pd.DataFrame, by: Sequence[str]) -> tuple[Ints, Ints]:
    """Return a number for each row, of shape (rows,), and the first row of each number.

    Numbers count the distinct values of the columns `by` from 0, by first appearance.
    """
    number = np.asarray(rows.groupby(list(by), sort=False, dropna=False).ngroup(), dtype=np.int64)
    return number, np.flatnonzero(np.diff(np.maximum.accumulate(number), prepend=-1))


def is_supported(rows: pd.DataFrame, target: Target, pool: Pool) -> Bools:
    """Return which rows' kernels are in the pool and support their problem, of shape (rows,)."""
    return support(rows, target, pool)[0]


def support(rows: pd.DataFrame, target: Target, pool: Pool) -> tuple[Bools, Ints]:
    """Return the mask of :func:`is_supported` and how many kernels of the pool support each row's problem.

    Both have shape (rows,).
    """
    if not len(rows):
        return np.zeros(0, dtype=bool), np.zeros(0, dtype=np.int64)
    masks = pool.supported_of(problems_of(rows, target))
    problem, place = problem_index(rows, target.op), pool_index(rows, pool)
    return masks[problem, place] & (place >= 0), masks.sum(axis=1)[problem]

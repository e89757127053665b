"""Choosing rows of a measurement table: a target's, a pool's, and those that a dispatcher could have launched."""

from __future__ import annotations

from typing import cast

import numpy as np
import numpy.typing as npt
import pandas as pd

from tilewise.data.columns import TARGET
from tilewise.kernels.pool import Pool
from tilewise.ops import OPS, Problem, Target

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


def is_of(frame: pd.DataFrame, target: Target) -> Bools:
    """(rows,) which rows are of `target`."""
    return cast(Bools, np.logical_and.reduce([frame[c.name].to_numpy() == getattr(target, c.name) for c in TARGET]))


def pool_index(rows: pd.DataFrame, pool: Pool) -> Ints:
    """(rows,) index of each row's kernel in the pool, -1 where it is not of the pool."""
    place = {name: i for i, name in enumerate(pool.names)}
    return cast(Ints, rows["kernel_name"].map(place).fillna(-1).to_numpy(dtype=np.int64))


def sort_rows(rows: pd.DataFrame, target: Target, pool: Pool) -> pd.DataFrame:
    """Sorted by problem dimensions, then pool order (kernels outside the pool last); one row a kernel, the first."""
    names = list(OPS[target.op].column_names())
    place = pool_index(rows, pool)
    order = rows.assign(_place=np.where(place < 0, len(pool), place))
    order = order.sort_values([*names, "_place", "kernel_name"], kind="stable").drop(columns="_place")
    return order.drop_duplicates([*names, "kernel_name"]).reset_index(drop=True)


def problems_of(rows: pd.DataFrame, target: Target) -> tuple[Problem, ...]:
    """The distinct problems, in the order of first appearance."""
    names = list(OPS[target.op].column_names())
    distinct = rows[names].drop_duplicates()
    return tuple(
        OPS[target.op](**dict(zip(names, row, strict=True))) for row in distinct.itertuples(index=False, name=None)
    )


def problem_index(rows: pd.DataFrame, op: str, *more: str) -> Ints:
    """(rows,) the problem of each row, and what is in the columns `more`, numbered from 0 by first appearance."""
    by = [*OPS[op].column_names(), *more]
    return np.asarray(rows.groupby(by, sort=False, dropna=False).ngroup(), dtype=np.int64)


def is_supported(rows: pd.DataFrame, target: Target, pool: Pool) -> Bools:
    """(rows,) which rows' kernels are of the pool and support their problem, by the rules that the dispatcher asks."""
    return support(rows, target, pool)[0]


def support(rows: pd.DataFrame, target: Target, pool: Pool) -> tuple[Bools, Ints]:
    """(rows,) what :func:`is_supported` says, and how many kernels of the pool support the row's problem."""
    if not len(rows):
        return np.zeros(0, dtype=bool), np.zeros(0, dtype=np.int64)
    masks = np.stack([pool.supported(p) for p in problems_of(rows, target)])
    problem, place = problem_index(rows, target.op), pool_index(rows, pool)
    return masks[problem, place] & (place >= 0), masks.sum(axis=1)[problem]

"""Unlisted candidates of tables that list the fastest few kernels of a problem only.

A kernel that is not listed was slower than the listed ones, or does not compute the problem. Without a row, it is never
learnt that such a kernel should not be selected. So a few unlisted kernels of each problem are added, with the rate of
the slowest listed one: the most that they can have, and the rate at which evaluation counts them.
"""

from __future__ import annotations

import numpy as np
import pandas as pd

from tilewise.data import TargetTable
from tilewise.kernels import Pool

PER_PROBLEM = 4  # as many as are listed: all of them would take several times as long to learn
_SEED = 0


def with_unlisted(labels: TargetTable, pool: Pool) -> TargetTable:
    """Return ordered labels with some unlisted kernels of each problem, drawn at random, the same in every call.

    Args:
        labels: valid, supported labels in the order of :meth:`TargetTable.ordered`.
        pool: the kernels.
    """
    number, kernel, rates = labels.problem, labels.kernel(pool), labels.tflops
    supported = np.stack([pool.supported(problem) for problem in labels.problems])
    supported[number, kernel] = False
    draw = np.where(supported, np.random.default_rng(_SEED).random(supported.shape), np.inf)
    drawn = np.argsort(draw, axis=1)[:, :PER_PROBLEM]
    problem, place = np.nonzero(np.isfinite(np.take_along_axis(draw, drawn, axis=1)))
    if not len(problem):
        return labels
    slowest = np.lexsort((rates, number))[np.searchsorted(np.sort(number), np.arange(len(supported)))]
    chosen = drawn[problem, place]
    added = labels.rows.iloc[slowest[problem]].assign(
        kernel_name=np.array(pool.names, dtype=object)[chosen],
        **{name: column[chosen] for name, column in pool.columns.items()},
    )
    return TargetTable(labels.target, pd.concat([labels.rows, added], ignore_index=True)).ordered(pool)

"""Calibration of a launch's cost model to measurements; see :mod:`tilewise.features` for the model itself.

Factors of costs: non-negative least squares of the relative error, one set per compiled binary, drawn towards the set
over all rows where a binary has few. Corrections: ridge regressions of the logarithm, first one per binary, then one
per kernel within it, each on the residuals of the step before.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import numpy as np
from scipy.optimize import nnls
from threadpoolctl import threadpool_limits

from tilewise.features import INTERCEPT, MOST_SHARE, CostModel, Terms, correction_basis, correction_columns
from tilewise.metrics import Numbers
from tilewise.train._dataset import Floats, Ints

REWEIGHTINGS = 6  # of the relative error, towards that of its logarithm
PRIOR_ROWS = 20.0  # weight of the set over all rows in a binary's own set, in rows
PRIOR_KERNEL = 1.0  # weight of zero error in a kernel's mean, in rows
RIDGE = 10.0  # likewise in a regression, for each standard deviation
MOST_ERROR = 1.0  # of the logarithm; a line does not explain larger errors
# Linear algebra libraries do not sum in the same order in every run. Values are rounded to digits on which they agree,
# so that equal measurements give equal models.
FACTOR_DIGITS = 4  # significant
WEIGHT_DIGITS = 4  # decimals, of a logarithm
LEAST_SHARE = 1e-9  # of a cost in the sum; the fit may leave 1e-16 in place of 0, by the order of the sums
ROUNDS = 2  # factors are fitted again once the mean error of each kernel is known


def one_thread_each() -> threadpool_limits:
    """Return a context in which each call of linear algebra runs in one thread.

    Sums must not depend on the number of threads, and the matrices are small. It holds for the whole process.
    """
    return threadpool_limits(1, user_api="blas")


def calibrate(terms: Terms, kernel: Numbers, log_clocks: Floats, weight: Floats, n_kernels: int) -> CostModel:
    """Return the cost model that fits measured launches.

    Args:
        terms: cost terms of the rows.
        kernel: index into the pool, of shape (rows,).
        log_clocks: natural logarithm of the measured clocks, of shape (rows,).
        weight: weight of each row, of shape (rows,); rows of weight 0 are ignored.
        n_kernels: size of the pool.
    """
    used = weight > 0
    if not used.all():
        terms = terms.take(np.flatnonzero(used))
        kernel, log_clocks, weight = kernel[used], log_clocks[used], weight[used]
    binaries, place = np.unique(terms.program, return_inverse=True)
    of_binaries, group = _groups(place), np.unique(kernel * len(binaries) + place, return_inverse=True)[1]
    mean = np.zeros(len(kernel))
    for _ in range(ROUNDS):
        relative = terms.costs * np.exp(mean - log_clocks)[:, None]
        factors = _significant(_factors(relative, weight, of_binaries))
        clocks = np.maximum((terms.costs * factors[place]).sum(axis=1), 1.0)
        mean = _means(log_clocks - np.log(clocks), weight, group)
    values = correction_columns(terms, clocks)
    centre, scale = values.mean(axis=0), values.std(axis=0)
    scale = np.where(scale > 1e-9 * np.maximum(np.abs(centre), MOST_SHARE), scale, 1.0)
    weights: Floats = np.zeros((n_kernels + 1, len(binaries) + 1, 1 + 2 * values.shape[1]))
    left = np.clip(log_clocks - np.log(clocks) - mean, -MOST_ERROR, MOST_ERROR)
    for number, rows in of_binaries:  # one at a time: the basis of all rows takes several times as much memory
        x, y, w = correction_basis(values[rows], centre, scale), left[rows], weight[rows]
        beta = _ridge(x, y, w)
        weights[:, number] += beta
        y -= (x * beta).sum(axis=1)
        for own, some in _groups(kernel[rows]):
            beta = _ridge(x[some], y[some], w[some])
            beta[0] += mean[rows[some[0]]] / INTERCEPT
            weights[own, number] += beta
    return CostModel(binaries.astype(np.int64), factors, centre, scale, np.round(weights, WEIGHT_DIGITS))


def _factors(relative: Floats, weight: Floats, of_binaries: Sequence[tuple[int, Ints]]) -> Floats:
    """Return factors with which costs relative to the measured time sum to 1, of shape (binaries + 1, costs)."""
    shared = _relative_fit(relative, weight, np.zeros(relative.shape[1]), 0.0)
    own = [_relative_fit(relative[rows], weight[rows], shared, PRIOR_ROWS) for _, rows in of_binaries]
    return np.array([*own, shared])


def _relative_fit(relative: Floats, weight: Floats, prior: Floats, prior_rows: float) -> Floats:
    """Return the factors of one set of rows."""
    # One buffer for all products: new memory for each takes as long as the arithmetic.
    weighted = relative**2
    weighted *= weight[:, None]
    size = np.sqrt(weighted.sum(axis=0) / weight.sum()) + 1e-12
    x, w, factors = relative / size, weight, prior * size
    for _ in range(REWEIGHTINGS):
        pull = prior_rows * float(w.mean()) + 1e-9 * len(w)
        gram = np.multiply(x, w[:, None], out=weighted).T @ x + pull * np.eye(x.shape[1])
        wanted = x.T @ w + pull * prior * size
        lower = np.linalg.cholesky(gram)
        factors = nnls(lower.T, np.linalg.solve(lower, wanted))[0]
        w = weight / np.maximum(x @ factors, 0.2)
    return cast(Floats, np.where(factors < LEAST_SHARE, 0.0, factors) / size)


def _means(left: Floats, weight: Floats, group: Ints) -> Floats:
    """Return the weighted mean of `left` over each row's group, drawn towards 0, of shape (rows,).

    Groups are numbered from 0 without gaps.
    """
    total = np.bincount(group, weight * np.clip(left, -1.5 * MOST_ERROR, 1.5 * MOST_ERROR))
    return cast(Floats, (total / (np.bincount(group, weight) + PRIOR_KERNEL))[group])


def _ridge(x: Floats, y: Floats, weight: Floats) -> Floats:
    weighted = x * weight[:, None]
    beta = np.linalg.solve(weighted.T @ x + RIDGE * np.eye(x.shape[1]), weighted.T @ y)
    return cast(Floats, np.round(beta, WEIGHT_DIGITS))


def _significant(values: Floats) -> Floats:
    """Round to :data:`FACTOR_DIGITS` significant digits."""
    digits = FACTOR_DIGITS - 1 - np.floor(np.log10(np.where(values > 0, values, 1.0)))
    return np.round(values * 10.0**digits) / 10.0**digits


def _groups(number: Numbers) -> list[tuple[int, Ints]]:
    """Return the number and rows of each group, groups ascending."""
    order = np.argsort(number, kind="stable")
    starts = np.flatnonzero(np.diff(number[order], prepend=-1))
    return [(int(number[rows[0]]), rows) for rows in np.split(order, starts[1:])]

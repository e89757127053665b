"""Fitting a launch's estimate to measurements; see :mod:`tilewise.features.estimate` for what it is.

Factors of costs: least squares of the relative error, not negative, one set a compiled program, drawn towards the set
over all rows where there are few. Corrections: ridge regressions of the logarithm, first one a program, then one for
each kernel in it, each on what the one before left.
"""

from __future__ import annotations

from typing import cast

import numpy as np
from scipy.optimize import nnls
from threadpoolctl import threadpool_limits

from tilewise.features.estimate import (
    INTERCEPT,
    MOST_SHARE,
    LaunchEstimate,
    Terms,
    basis,
    columns,
)
from tilewise.train.dataset import Floats, Ints

REWEIGHTINGS = 6  # least squares of the relative error, reweighted towards that of its logarithm
PRIOR_ROWS = 20.0  # rows that the set over all rows counts for in a program's own
PRIOR_KERNEL = 1.0  # rows that no error at all counts for in a kernel's mean
RIDGE = 10.0  # likewise in a regression, for each standard deviation
MOST_ERROR = 1.0  # of the logarithm; more is not to be explained by a line
# Libraries of linear algebra do not sum in the same order in every run. Digits that they agree on are kept, so that the
# same measurements give the same model; more would say nothing, and fill files.
FACTOR_DIGITS = 4  # significant
WEIGHT_DIGITS = 4  # after the point, of a logarithm
ROUNDS = 2  # factors again, once it is known by how much each kernel misses them


def calibrate(terms: Terms, kernel: Ints, log_clocks: Floats, weight: Floats, n_kernels: int) -> LaunchEstimate:
    """Fit an estimate.

    Args:
        terms: of the rows.
        kernel: (rows,) index into the pool.
        log_clocks: (rows,) natural logarithm of the measured clocks.
        weight: (rows,) how much each counts, 0 leaves it out.
        n_kernels: size of the pool.

    One thread, whatever the machine: sums must not depend on how many share them, and the matrices are small.
    """
    with threadpool_limits(1, user_api="blas"):
        return _calibrate(terms, kernel, log_clocks, weight, n_kernels)


def _calibrate(terms: Terms, kernel: Ints, log_clocks: Floats, weight: Floats, n_kernels: int) -> LaunchEstimate:
    used = weight > 0
    terms = terms.take(np.flatnonzero(used))
    kernel, log_clocks, weight = kernel[used], log_clocks[used], weight[used]
    programs, place = np.unique(terms.program, return_inverse=True)
    group = kernel * len(programs) + place
    mean = np.zeros(len(kernel))
    for _ in range(ROUNDS):
        relative = terms.costs * np.exp(mean - log_clocks)[:, None]
        factors = _significant(_factors(relative, place, weight, len(programs)))
        clocks = np.maximum((terms.costs * factors[place]).sum(axis=1), 1.0)
        mean = _means(log_clocks - np.log(clocks), weight, group)
    values = columns(terms, clocks)
    centre, scale = values.mean(axis=0), values.std(axis=0)
    scale = np.where(scale > 1e-9 * np.maximum(np.abs(centre), MOST_SHARE), scale, 1.0)
    x = basis(values, centre, scale)
    weights = np.zeros((n_kernels + 1, len(programs) + 1, x.shape[1]))
    left = np.clip(log_clocks - np.log(clocks) - mean, -MOST_ERROR, MOST_ERROR)
    for number, rows in _groups(place):
        beta = _ridge(x[rows], left[rows], weight[rows])
        weights[:, number] += beta
        left[rows] -= (x[rows] * beta).sum(axis=1)
    for number, rows in _groups(group):
        beta = _ridge(x[rows], left[rows], weight[rows])
        beta[0] += mean[rows[0]] / INTERCEPT
        weights[number // len(programs), number % len(programs)] += beta
    return LaunchEstimate(programs.astype(np.int64), factors, centre, scale, np.round(weights, WEIGHT_DIGITS))


def _factors(relative: Floats, place: Ints, weight: Floats, n_programs: int) -> Floats:
    """(programs + 1, costs) factors with which costs, relative to the measured time, sum up to 1."""
    shared = _relative_fit(relative, weight, np.zeros(relative.shape[1]), 0.0)
    own = [_relative_fit(relative[rows], weight[rows], shared, PRIOR_ROWS) for _, rows in _groups(place)]
    assert len(own) == n_programs
    return np.array([*own, shared])


def _relative_fit(relative: Floats, weight: Floats, prior: Floats, prior_rows: float) -> Floats:
    """Factors of one set of rows."""
    size = np.sqrt((relative**2 * weight[:, None]).sum(axis=0) / weight.sum()) + 1e-12
    x, w, factors = relative / size, weight, prior * size
    for _ in range(REWEIGHTINGS):
        pull = prior_rows * float(w.mean()) + 1e-9 * len(w)
        gram = (x * w[:, None]).T @ x + pull * np.eye(x.shape[1])
        wanted = x.T @ w + pull * prior * size
        lower = np.linalg.cholesky(gram)
        factors = nnls(lower.T, np.linalg.solve(lower, wanted))[0]
        w = weight / np.maximum(x @ factors, 0.2)
    return cast(Floats, factors / size)


def _means(left: Floats, weight: Floats, group: Ints) -> Floats:
    """(rows,) weighted mean of `left` over a row's group, drawn towards 0."""
    number = np.unique(group, return_inverse=True)[1]
    total = np.bincount(number, weight * np.clip(left, -1.5 * MOST_ERROR, 1.5 * MOST_ERROR))
    return cast(Floats, (total / (np.bincount(number, weight) + PRIOR_KERNEL))[number])


def _ridge(x: Floats, y: Floats, weight: Floats) -> Floats:
    weighted = x * weight[:, None]
    beta = np.linalg.solve(weighted.T @ x + RIDGE * np.eye(x.shape[1]), weighted.T @ y)
    return cast(Floats, np.round(beta, WEIGHT_DIGITS))


def _significant(values: Floats) -> Floats:
    """To :data:`FACTOR_DIGITS` significant digits."""
    digits = FACTOR_DIGITS - 1 - np.floor(np.log10(np.where(values > 0, values, 1.0)))
    return np.round(values * 10.0**digits) / 10.0**digits


def _groups(number: Ints) -> list[tuple[int, Ints]]:
    """The rows of each group, groups ascending."""
    order = np.argsort(number, kind="stable")
    starts = np.flatnonzero(np.diff(number[order], prepend=-1))
    return [(int(number[rows[0]]), rows) for rows in np.split(order, starts[1:])]

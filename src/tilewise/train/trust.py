"""Calibrating trust: the risk of a ranking, and what rankings of like risk lost, from out-of-fold predictions.

Every problem was ranked by a fold that had not seen it, so no further training is needed. The line of risk is fitted
across the same folds: a problem's risk comes from a line that was fitted without it, as a new problem's will. The bins'
losses are then those of exchangeable problems, but for the folds having learnt from less than the final model did: the
bounds err on the safe side.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import cast

import numpy as np
from threadpoolctl import threadpool_limits

from tilewise.features.octaves import nearest_octaves
from tilewise.metrics import select
from tilewise.model.trust import COVARIATES, MOST_DEVIATIONS, PARTS, Calibration, covariates_of
from tilewise.train.cross_validation import Fold, tested
from tilewise.train.dataset import Floats, Ints, Table
from tilewise.train.result import OutOfFold

PER_BIN = 180  # problems: a bound at 90 % then rests on the 18 worst
MOST_BINS = 8
WORST = 0.05  # a larger loss is no more of a risk
RIDGE = 1.0
STEPS = 25  # Newton's, of a problem that is convex
DIGITS = 4  # after the point, of what is fitted: libraries of linear algebra agree on them in every run


def calibrate_trust(
    table: Table, folds: Sequence[Fold], out_of_fold: OutOfFold, log_rates: Floats | None
) -> Calibration:
    """Fit a calibration.

    Args:
        table: what is learnt from.
        folds: those that predicted.
        out_of_fold: their predictions.
        log_rates: (rows,) the launch estimate of each fold for its test rows, log TFLOPS; None where there is none.
    """
    keys = np.array([p.group_key for p in table.problems], dtype=np.int64)
    octaves = np.empty(len(keys))
    for fold in folds:
        octaves[fold.test] = nearest_octaves(keys[fold.test], keys[fold.train])
    judged = tested(folds)
    rows, octaves = table.rows_of(judged), octaves[judged]
    losses = 1 - select(out_of_fold.problem, out_of_fold.measured, out_of_fold.predicted).top_efficiency
    rates = None if log_rates is None else log_rates[rows]
    covariates = covariates_of_table(table.take(rows), out_of_fold.predicted, rates, octaves)
    parts = [np.searchsorted(judged, fold.test) for fold in folds]
    return fit_calibration(covariates, losses, parts, np.unique(keys, axis=0), octaves.max())


def covariates_of_table(table: Table, predicted: Floats, log_rates: Floats | None, octaves: Floats) -> Floats:
    """(problems, covariates) of every problem's predictions."""
    bounds = np.append(np.flatnonzero(np.diff(table.problem, prepend=-1)), len(table.problem))
    rows = [slice(start, stop) for start, stop in pairwise(bounds.tolist())]
    log_tflops = np.log(predicted)
    return np.array(
        [
            covariates_of(p, log_tflops[r], None if log_rates is None else log_rates[r], float(o))
            for p, r, o in zip(table.problems, rows, octaves, strict=True)
        ]
    )


def fit_calibration(
    covariates: Floats, losses: Floats, parts: Sequence[Ints], keys: Ints, farthest: float
) -> Calibration:
    """The calibration of rankings whose covariates (problems, covariates) and losses (problems, DEPTH) are known.

    Args:
        covariates: of each problem.
        losses: of the best of the top k, not rising with k.
        parts: the problems of each fold; risks are fitted across them.
        keys: (shapes, dimensions) what the model learnt from.
        farthest: octaves beyond which nothing is known.
    """
    badness = np.minimum(losses[:, 0] / WORST, 1.0)
    centre, scale = np.round(covariates.mean(axis=0), DIGITS), np.round(covariates.std(axis=0), DIGITS)
    scale = np.where(scale > 0, scale, 1.0)
    z = np.clip((covariates - centre) / scale, -MOST_DEVIATIONS, MOST_DEVIATIONS)
    with threadpool_limits(1, user_api="blas"):
        risk = np.empty(len(z))
        for part in parts:
            rest = np.setdiff1d(np.arange(len(z)), part)
            weights, intercept = _risk_line(z[rest], badness[rest])
            risk[part] = z[part] @ weights + intercept
        weights, intercept = _risk_line(z, badness)
    bins = min(max(len(risk) // PER_BIN, 1), MOST_BINS)
    edges = np.round(np.quantile(risk, np.arange(1, bins) / bins), DIGITS)
    number = np.searchsorted(edges, np.round(risk, 2 * DIGITS))
    rounded = np.ceil(np.round(losses * PARTS, 6)) / PARTS
    return Calibration(
        keys=keys,
        farthest=float(farthest),
        centre=centre,
        scale=scale,
        weights=weights,
        intercept=intercept,
        edges=edges,
        counts=np.bincount(number, minlength=bins).astype(np.int64),
        losses=[[_tail(rounded[number == b, k]) for k in range(losses.shape[1])] for b in range(bins)],
    )


def _tail(losses: Floats) -> Floats:
    """Those above 0, descending."""
    return -np.sort(-losses[losses > 0])


def _risk_line(z: Floats, badness: Floats) -> tuple[Floats, float]:
    """Weights and intercept of a fractional logistic regression with a ridge.

    Papke and Wooldridge, Econometric methods for fractional response variables, 1996: the mean of an outcome in [0, 1].
    """
    x = np.column_stack([np.ones(len(z)), z])
    ridge = RIDGE * np.eye(x.shape[1])
    ridge[0, 0] = 1e-6
    beta = np.zeros(x.shape[1])
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-np.clip(x @ beta, -30, 30)))
        curvature = (x * (p * (1 - p))[:, None]).T @ x + ridge
        beta = beta + np.linalg.solve(curvature, x.T @ (badness - p) - ridge @ beta)
    beta = np.round(beta, DIGITS)
    assert len(beta) == len(COVARIATES) + 1
    return cast(Floats, beta[1:]), float(beta[0])

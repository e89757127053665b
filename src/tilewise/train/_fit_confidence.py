"""Calibration of the confidence: the risk of a ranking, and the losses of rankings of similar risk.

Both come from out-of-fold predictions, so no further training is needed. The risk line is fitted across the same folds:
a problem's risk comes from a line that was fitted without that problem, as for a new problem. The losses within a risk
bin are then those of exchangeable problems. The folds learnt from fewer problems than the final model, so the bounds
err on the safe side.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import cast

import numpy as np
from threadpoolctl import threadpool_limits

from tilewise.features import nearest_shape_distances
from tilewise.metrics import select
from tilewise.model import COVARIATES, MOST_DEVIATIONS, PARTS, Calibration, covariates_of
from tilewise.train._cross_validation import Fold, tested_problems
from tilewise.train._dataset import Floats, Ints, Table
from tilewise.train._training_result import OutOfFold

PROBLEMS_PER_BIN = 180  # a bound at 90 % then rests on the 18 largest losses
MAX_BINS = 8
MAX_LOSS = 0.05  # larger losses count as this much risk
RIDGE = 1.0
NEWTON_STEPS = 25  # the regression is convex
DIGITS = 4  # decimals of the fitted values: linear algebra libraries agree on them in every run


def fit_confidence(
    table: Table, folds: Sequence[Fold], out_of_fold: OutOfFold, log_rates: Floats | None
) -> Calibration:
    """Return the calibration of a cross-validated model.

    Args:
        table: the training rows.
        folds: folds of the cross-validation.
        out_of_fold: their predictions.
        log_rates: log(TFLOPS) of each row by the cost model of the fold that tests it, of shape (rows,); None where
            the label needs no cost model.
    """
    keys = table.group_keys
    distance = np.empty(len(keys))
    for fold in folds:
        distance[fold.test] = nearest_shape_distances(keys[fold.test], keys[fold.train])
    tested = tested_problems(folds)
    rows, distance = table.measured_rows_of(tested), distance[tested]
    losses = 1 - select(out_of_fold.problem, out_of_fold.measured, out_of_fold.predicted).top_efficiency
    rates = None if log_rates is None else log_rates[rows]
    covariates = covariates_of_table(table.take(rows), out_of_fold.predicted, rates, distance)
    parts = [np.searchsorted(tested, fold.test) for fold in folds]
    return fit_calibration(Rankings(covariates, losses, parts), np.unique(keys, axis=0), distance.max())


def covariates_of_table(table: Table, predicted: Floats, log_rates: Floats | None, distance: Floats) -> Floats:
    """Return the covariates of each problem's predictions, of shape (problems, covariates)."""
    bounds = np.append(np.flatnonzero(np.diff(table.problem, prepend=-1)), len(table.problem))
    rows = [slice(start, stop) for start, stop in pairwise(bounds.tolist())]
    log_tflops = np.log(predicted)
    return np.array(
        [
            covariates_of(p, log_tflops[r], None if log_rates is None else log_rates[r], float(d))
            for p, r, d in zip(table.problems, rows, distance, strict=True)
        ]
    )


@dataclass(frozen=True)
class Rankings:
    """Rankings with known losses.

    Attributes:
        covariates: of shape (problems, covariates).
        losses: loss of the best of the top k, for k from 1 to DEPTH, of shape (problems, DEPTH); not rising with k.
        parts: problems of each fold; risk lines are fitted across the folds.
    """

    covariates: Floats
    losses: Floats
    parts: Sequence[Ints]


def fit_calibration(rankings: Rankings, keys: Ints, farthest: float) -> Calibration:
    """Return the calibration of rankings.

    Args:
        rankings: covariates and losses.
        keys: group keys of the training problems, of shape (shapes, dimensions).
        farthest: largest log2 shape distance of the rankings to their training problems.
    """
    covariates, losses = rankings.covariates, rankings.losses
    capped = np.minimum(losses[:, 0] / MAX_LOSS, 1.0)
    centre, scale = np.round(covariates.mean(axis=0), DIGITS), np.round(covariates.std(axis=0), DIGITS)
    scale = np.where(scale > 0, scale, 1.0)
    z = np.clip((covariates - centre) / scale, -MOST_DEVIATIONS, MOST_DEVIATIONS)
    with threadpool_limits(1, user_api="blas"):
        risk = np.empty(len(z))
        for part in rankings.parts:
            rest = np.setdiff1d(np.arange(len(z)), part)
            weights, intercept = _risk_line(z[rest], capped[rest])
            risk[part] = z[part] @ weights + intercept
        weights, intercept = _risk_line(z, capped)
    bins = min(max(len(risk) // PROBLEMS_PER_BIN, 1), MAX_BINS)
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
    """Return the losses above 0, descending."""
    return -np.sort(-losses[losses > 0])


def _risk_line(z: Floats, capped: Floats) -> tuple[Floats, float]:
    """Return weights and intercept of a fractional logistic regression with a ridge.

    Papke and Wooldridge, Econometric methods for fractional response variables, 1996: the mean of an outcome in [0, 1].
    """
    x = np.column_stack([np.ones(len(z)), z])
    ridge = RIDGE * np.eye(x.shape[1])
    ridge[0, 0] = 1e-6
    beta = np.zeros(x.shape[1])
    for _ in range(NEWTON_STEPS):
        p = 1 / (1 + np.exp(-np.clip(x @ beta, -30, 30)))
        curvature = (x * (p * (1 - p))[:, None]).T @ x + ridge
        beta = beta + np.linalg.solve(curvature, x.T @ (capped - p) - ridge @ beta)
    beta = np.round(beta, DIGITS)
    assert len(beta) == len(COVARIATES) + 1
    return cast(Floats, beta[1:]), float(beta[0])

"""Confidence in a selection: a bound on its regret, and the number of top-ranked kernels worth measuring.

The loss (regret) of measuring the top k kernels is 1 - the fastest one's TFLOPS / the oracle's; k = 1 is the selection
itself. Training knows the losses of every problem from rankings that were made without the problem. A linear risk over
a few covariates orders problems, and problems of similar risk share a bin. In a bin with n losses, the loss of a new
problem is at most the ceil((n + 1) level)-th smallest of them with probability `level` or more, for any distribution of
losses. This is Mondrian conformal prediction (Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005,
section 4.5), exact if the new problem and the calibration problems are exchangeable within the bin. Most losses are 0,
so the interval begins at 0, and a bound of 0 says that the selection is the oracle.

A selection itself does not compute its confidence. :mod:`tilewise.train` fits the calibration.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from tilewise.errors import ArtefactError, ConfigError
from tilewise.features import log_sizes, nearest_shape_distance
from tilewise.metrics import DEPTH, Floats, Ints
from tilewise.ops import Problem

VERSION = 1  # increase when a covariate or the evaluation below changes
LEVEL = 0.9  # probability of the interval, and of k
TOLERANCE = 0.03  # loss that the fastest of the top k may have

# Stored in artefacts, so the texts must not change.
COVARIATES = (
    "margin: log of the first predicted TFLOPS over the second",
    "rivals_1: log of the number of kernels within about 1 % of the first",
    "rivals_3: within 3 %",
    "rivals_10: within 10 %",
    "octaves: log(1 + distance to the nearest shape that was learnt from)",
    "size: log2 of the FLOPs",
    "estimate_loss: what the selection loses by the launch estimate, a logarithm",
    "model_loss: what the launch estimate's selection loses by the model, a logarithm",
)
MOST_LOG = 0.3  # limit of a margin or loss: larger ones just mean far apart
MOST_DEVIATIONS = 3.0  # limit of covariates, in standard deviations of the calibration problems
PARTS = 10_000  # losses are stored as multiples of 1 / PARTS of the oracle, rounded up


@dataclass(frozen=True)
class Confidence:
    """The bound on the regret of one selection, known before anything is measured.

    Attributes:
        level: probability that each of the two statements holds.
        regret: (lowest, highest) share of the oracle's TFLOPS that the selection loses, in [0, 1].
        shape_distance: log2 distance to the nearest shape in the training data (:mod:`tilewise.features`).
        tolerance: the loss that `k` guarantees at most.
        k: the smallest number of top-ranked kernels to measure so that the fastest of them loses at most `tolerance`;
            1: launch the selection. None: no k up to :data:`~tilewise.metrics.DEPTH` suffices, or the problem is
            farther from the training data than any calibration problem; measure all kernels.
    """

    level: float
    regret: tuple[float, float]
    shape_distance: float
    tolerance: float
    k: int | None

    @property
    def octaves(self) -> float:
        """Return :attr:`shape_distance` under its earlier name, which programs may still read."""
        return self.shape_distance

    def to_dict(self) -> dict[str, float | tuple[float, float] | int | None]:
        """Return the fields under the names that reports and the command line print."""
        return {
            "level": self.level,
            "regret": self.regret,
            "octaves": self.shape_distance,
            "tolerance": self.tolerance,
            "k": self.k,
        }


@dataclass(frozen=True, eq=False)
class Calibration:
    """Losses of out-of-fold rankings, by risk; immutable, safe to share between threads.

    Attributes:
        keys: (problems, dimensions) group keys of the training data.
        farthest: largest shape distance of a calibration problem.
        centre, scale, weights: (covariates,) of the linear risk ``intercept + z @ weights``.
        intercept: of the linear risk.
        edges: (bins - 1,) risks between bins, ascending.
        counts: (bins,) calibration problems.
        losses: positive losses of each bin and each k from 1 to DEPTH, descending.
    """

    keys: Ints
    farthest: float
    centre: Floats
    scale: Floats
    weights: Floats
    intercept: float
    edges: Floats
    counts: Ints
    losses: Sequence[Sequence[Floats]]

    @cached_property
    def _log_keys(self) -> Floats:
        return log_sizes(self.keys)

    def shape_distance(self, problem: Problem) -> float:
        """Return the log2 distance of a problem to the nearest shape in the training data."""
        return nearest_shape_distance(log_sizes(problem.group_key), self._log_keys)

    def risk(self, covariates: Floats) -> Floats:
        """Return the risk of :func:`covariates_of`: (..., covariates) to (...,). Higher means larger losses."""
        z = np.clip((covariates - self.centre) / self.scale, -MOST_DEVIATIONS, MOST_DEVIATIONS)
        risk: Floats = z @ self.weights + self.intercept
        return risk

    def bin_of(self, risk: float) -> int:
        """Return the bin of a risk."""
        return int(np.searchsorted(self.edges, risk))

    def bound(self, number: int, k: int, level: float = LEVEL) -> float:
        """Return the bound, at probability `level`, on the loss of the top `k` in bin `number`; 1 for too few problems.

        Raises:
            ConfigError: the level is not between 0 and 1.
        """
        if not 0 < level < 1:
            raise ConfigError(f"level must be between 0 and 1, got {level}")
        n, worst = int(self.counts[number]), self.losses[number][k - 1]
        # counted from the largest loss; rounded, because 0.9 is not a binary fraction
        place = n - math.ceil(round((n + 1) * level, 9))
        if place < 0:
            return 1.0
        return float(worst[place]) if place < len(worst) else 0.0

    def smallest_k(self, number: int, tolerance: float = TOLERANCE, level: float = LEVEL) -> int | None:
        """Return the smallest k up to DEPTH whose :meth:`bound` is within `tolerance`, or None."""
        return next((k for k in range(1, DEPTH + 1) if self.bound(number, k, level) <= tolerance), None)

    def confidence(
        self,
        problem: Problem,
        log_tflops: Floats,
        log_rates: Floats | None,
        tolerance: float = TOLERANCE,
        level: float = LEVEL,
    ) -> Confidence:
        """Bound the regret of a selection.

        Args:
            problem: the problem that a kernel is selected for.
            log_tflops: (candidates,) natural logarithm of the predicted TFLOPS, at least one.
            log_rates: (candidates,) the same by the cost model alone; None without a cost model.
            tolerance: loss that the fastest of the top k may have, in [0, 1).
            level: probability of each statement, in (0, 1).

        Raises:
            ConfigError: tolerance or level is out of range.
        """
        if not 0 <= tolerance < 1:
            raise ConfigError(f"tolerance must be in [0, 1), got {tolerance}")
        distance = self.shape_distance(problem)
        number = self.bin_of(float(self.risk(covariates_of(problem, log_tflops, log_rates, distance))))
        bound, k = self.bound(number, 1, level), self.smallest_k(number, tolerance, level)
        if distance > self.farthest:
            bound, k = 1.0, None
        return Confidence(level, (0.0, bound), distance, tolerance, k)

    def to_dict(self) -> dict[str, object]:
        """Return plain data, as the artefact stores it."""
        return {
            "version": VERSION,
            "covariates": list(COVARIATES),
            **{name: getattr(self, name).tolist() for name in ("centre", "scale", "weights", "edges", "counts")},
            "intercept": self.intercept,
            "farthest": self.farthest,
            "losses": [[np.round(v * PARTS).astype(int).tolist() for v in bin_] for bin_ in self.losses],
            "keys": self.keys.tolist(),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Self:
        """Invert :meth:`to_dict`.

        Raises:
            ArtefactError: the covariates differ from this library's, or the parts are inconsistent.
        """
        if values["version"] != VERSION or tuple(values["covariates"]) != COVARIATES:
            raise ArtefactError("the covariates are defined differently in this library; train again")
        centre, scale, weights, edges = (
            np.array(values[n], dtype=np.float64) for n in ("centre", "scale", "weights", "edges")
        )
        counts, keys = (np.array(values[n], dtype=np.int64) for n in ("counts", "keys"))
        losses = [[np.array(v, dtype=np.float64) / PARTS for v in bin_] for bin_ in values["losses"]]
        intercept, farthest = float(values["intercept"]), float(values["farthest"])
        n_bins = len(edges) + 1
        fits = (
            centre.shape == scale.shape == weights.shape == (len(COVARIATES),)
            and all(np.isfinite(v).all() for v in (centre, scale, weights, edges))
            and math.isfinite(intercept)
            and math.isfinite(farthest)
            and bool((scale > 0).all() and (np.diff(edges) >= 0).all())
            and counts.shape == (n_bins,)
            and len(losses) == n_bins
            and all(len(bin_) == DEPTH for bin_ in losses)
            and all(_is_tail(v, c) for bin_, c in zip(losses, counts.tolist(), strict=True) for v in bin_)
            and keys.ndim == 2
            and len(keys) > 0
        )
        if not fits:
            raise ArtefactError("its parts are inconsistent; fetch the model again")
        return cls(keys, farthest, centre, scale, weights, intercept, edges, counts, losses)


def _is_tail(losses: Floats, count: int) -> bool:
    """Return whether `losses` can be the positive losses of `count` problems, descending."""
    inside = bool(((losses > 0) & (losses <= 1)).all() and (np.diff(losses) <= 0).all())
    return losses.ndim == 1 and len(losses) <= count and inside


def covariates_of(problem: Problem, log_tflops: Floats, log_rates: Floats | None, distance: float) -> Floats:
    """Return the :data:`COVARIATES` of a selection: (covariates,).

    Args:
        problem: the problem that a kernel is selected for.
        log_tflops: (candidates,) natural logarithm of the predicted TFLOPS, at least one.
        log_rates: (candidates,) the same by the cost model alone; None without a cost model.
        distance: log2 distance to the nearest shape in the training data.
    """
    gaps = log_tflops.max() - log_tflops
    margin = float(np.partition(gaps, 1)[1]) if len(gaps) > 1 else MOST_LOG
    rivals = [float(np.log(np.exp(-gaps / width).sum())) for width in (0.01, 0.03, 0.1)]
    cost_model_loss = model_loss = 0.0
    if log_rates is not None:
        cost_model_loss = float(log_rates.max() - log_rates[log_tflops.argmax()])
        model_loss = float(gaps[log_rates.argmax()])
    return np.array(
        [
            min(margin, MOST_LOG),
            *rivals,
            math.log1p(distance),
            math.log2(problem.flops),
            min(cost_model_loss, MOST_LOG),
            min(model_loss, MOST_LOG),
        ]
    )

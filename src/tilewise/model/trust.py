"""How far to trust a selection: a bound on what it loses, and how many of the best ranked are worth measuring.

The loss (regret) of "the best of the top k, measured" is 1 - its TFLOPS / the oracle's; k = 1 is the selection itself.
Training knows it for every problem from rankings that were made without that problem. A line over a few covariates
orders problems by risk; problems of like risk share a bin, and in a bin the loss of a new problem stays within the
ceil((n + 1) level)-th smallest of its n with probability `level` or more, whatever the losses' distribution: Mondrian
conformal prediction (Vovk, Gammerman and Shafer, Algorithmic Learning in a Random World, 2005, section 4.5), exact
where the new problem and the calibration's are exchangeable within their bin. Most losses are 0, so an interval has 0
as its lower end, and a bound of 0 says that the selection is the oracle.

Only asked for, never on the way of a selection. :mod:`tilewise.train.trust` fits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Self

import numpy as np

from tilewise.errors import ArtefactError, ConfigError
from tilewise.features.octaves import log_sizes, nearest
from tilewise.metrics import DEPTH, Floats, Ints
from tilewise.ops import Problem

VERSION = 1  # goes up when a covariate or the evaluation below changes
LEVEL = 0.9  # of the interval, and of k
TOLERANCE = 0.03  # what the best of the top k may lose

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
MOST_LOG = 0.3  # of a margin or loss: beyond, the two are simply far apart
MOST_DEVIATIONS = 3.0  # covariates beyond what was calibrated on count as at its edge
PARTS = 10_000  # of the oracle, in which losses are counted, rounded up


@dataclass(frozen=True)
class Trust:
    """What is known of a selection before anything is measured.

    Attributes:
        level: probability that each of the two statements holds.
        regret: (lowest, highest) share of the oracle's TFLOPS that the selection loses, in [0, 1].
        octaves: distance to the nearest shape that the model learnt from (:mod:`tilewise.features.octaves`).
        tolerance: what `k` is about.
        k: the fewest of the best ranked to measure so that their fastest loses no more than `tolerance`; 1: launch the
            selection. None: no k up to :data:`~tilewise.metrics.DEPTH` serves, or the problem is farther from
            everything known than any that was calibrated on: measure all.
    """

    level: float
    regret: tuple[float, float]
    octaves: float
    tolerance: float
    k: int | None


@dataclass(frozen=True, eq=False)
class Calibration:
    """Losses of past rankings by risk; immutable, safe to share between threads.

    Attributes:
        keys: (problems, dimensions) group keys that the model learnt from.
        farthest: octaves beyond which nothing was calibrated.
        centre, scale, weights: (covariates,) the line; the risk is ``intercept + z @ weights``.
        intercept: likewise.
        edges: (bins - 1,) risks between bins, ascending.
        counts: (bins,) calibration problems.
        losses: of each bin and each k from 1 to DEPTH: the losses above 0, descending.
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
    def _points(self) -> Floats:
        return log_sizes(self.keys)

    def octaves(self, problem: Problem) -> float:
        """Distance of a problem to the nearest that the model learnt from."""
        return nearest(log_sizes(problem.group_key), self._points)

    def risk(self, covariates: Floats) -> Floats:
        """(...,) of :func:`covariates_of`, shape (..., covariates): higher loses more."""
        z = np.clip((covariates - self.centre) / self.scale, -MOST_DEVIATIONS, MOST_DEVIATIONS)
        risk: Floats = z @ self.weights + self.intercept
        return risk

    def bin_of(self, risk: float) -> int:
        """Which bin a risk falls into."""
        return int(np.searchsorted(self.edges, risk))

    def bound(self, number: int, k: int, level: float = LEVEL) -> float:
        """What the best of the top `k` loses at most, with probability `level`, in bin `number`; 1 where too few tell.

        Raises:
            ConfigError: the level is no probability below 1.
        """
        if not 0 < level < 1:
            raise ConfigError(f"level must be between 0 and 1, got {level}")
        n, worst = int(self.counts[number]), self.losses[number][k - 1]
        place = n - math.ceil(round((n + 1) * level, 9))  # counted from the largest; rounded: 0.9 is no binary fraction
        if place < 0:
            return 1.0
        return float(worst[place]) if place < len(worst) else 0.0

    def depth(self, number: int, tolerance: float = TOLERANCE, level: float = LEVEL) -> int | None:
        """The smallest k whose :meth:`bound` is within `tolerance`; None where there is none up to DEPTH."""
        return next((k for k in range(1, DEPTH + 1) if self.bound(number, k, level) <= tolerance), None)

    def trust(
        self,
        problem: Problem,
        log_tflops: Floats,
        log_rates: Floats | None,
        tolerance: float = TOLERANCE,
        level: float = LEVEL,
    ) -> Trust:
        """Judge a selection.

        Args:
            problem: what is selected for.
            log_tflops: (candidates,) natural logarithm of the predicted TFLOPS, at least one.
            log_rates: (candidates,) the same by the launch estimate alone; None where the model has none.
            tolerance: what the best of the top k may lose, in [0, 1).
            level: of both statements, in (0, 1).

        Raises:
            ConfigError: tolerance or level lie outside.
        """
        if not 0 <= tolerance < 1:
            raise ConfigError(f"tolerance must be in [0, 1), got {tolerance}")
        octaves = self.octaves(problem)
        number = self.bin_of(float(self.risk(covariates_of(problem, log_tflops, log_rates, octaves))))
        bound, k = self.bound(number, 1, level), self.depth(number, tolerance, level)
        if octaves > self.farthest:
            bound, k = 1.0, None
        return Trust(level, (0.0, bound), octaves, tolerance, k)

    def to_dict(self) -> dict[str, Any]:
        """Plain data."""
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
        """The inverse of :meth:`to_dict`.

        Raises:
            ArtefactError: it has other covariates than this library, or its parts do not fit.
        """
        if values["version"] != VERSION or tuple(values["covariates"]) != COVARIATES:
            raise ArtefactError("the covariates of risk mean something else in this library; train again")
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
            raise ArtefactError("its parts do not fit together")
        return cls(keys, farthest, centre, scale, weights, intercept, edges, counts, losses)


def _is_tail(losses: Floats, count: int) -> bool:
    """Whether these can be the losses above 0 of so many problems, descending."""
    inside = bool(((losses > 0) & (losses <= 1)).all() and (np.diff(losses) <= 0).all())
    return losses.ndim == 1 and len(losses) <= count and inside


def covariates_of(problem: Problem, log_tflops: Floats, log_rates: Floats | None, octaves: float) -> Floats:
    """(covariates,) what the risk of a selection is read from: :data:`COVARIATES`; arguments as for `trust` above."""
    gaps = log_tflops.max() - log_tflops
    margin = float(np.partition(gaps, 1)[1]) if len(gaps) > 1 else MOST_LOG
    rivals = [float(np.log(np.exp(-gaps / width).sum())) for width in (0.01, 0.03, 0.1)]
    estimate_loss = model_loss = 0.0
    if log_rates is not None:
        estimate_loss = float(log_rates.max() - log_rates[log_tflops.argmax()])
        model_loss = float(gaps[log_rates.argmax()])
    return np.array(
        [
            min(margin, MOST_LOG),
            *rivals,
            math.log1p(octaves),
            math.log2(problem.flops),
            min(estimate_loss, MOST_LOG),
            min(model_loss, MOST_LOG),
        ]
    )

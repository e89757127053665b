"""The paired bootstrap: confidence intervals for the difference of two models on the same problems.

Problems are drawn with replacement, both models' efficiencies of a problem together, and the difference of a statistic
is computed for each draw. The interval holds the middle share of these differences (the percentile method of Efron and
Tibshirani, An Introduction to the Bootstrap, chapter 13). Pairing matters: two models fail on much the same problems,
so their difference is known far more precisely than either figure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from tilewise.errors import ConfigError
from tilewise.metrics import Floats

N_RESAMPLES, LEVEL = 2000, 0.95
_CELLS = 1 << 20  # efficiencies drawn at a time: 8 MiB

# Each reduces the last axis of shape (problems,) or (resamples, problems).
STATISTICS: Mapping[str, Callable[[Floats], Floats]] = {
    "mean": lambda e: np.mean(e, axis=-1),
    "median": lambda e: np.median(e, axis=-1),
    "p10": lambda e: np.percentile(e, 10, axis=-1),
    "worst": lambda e: np.min(e, axis=-1),
}


@dataclass(frozen=True)
class Interval:
    """A difference of efficiencies with its confidence interval; 0.01 is one point.

    Attributes:
        delta: difference on the problems as they are.
        low, high: ends of the interval.
    """

    delta: float
    low: float
    high: float

    @property
    def verdict(self) -> str:
        """``better``, ``worse``, ``equal`` (no draw differs), or ``unclear`` where the interval contains 0."""
        if self.low == self.high == 0:
            return "equal"
        return "better" if self.low > 0 else "worse" if self.high < 0 else "unclear"


def paired_bootstrap(
    a: Floats, b: Floats, *, n_resamples: int = N_RESAMPLES, level: float = LEVEL, seed: int = 0
) -> dict[str, Interval]:
    """Return the difference b - a in each of :data:`STATISTICS`; equal arguments give equal intervals.

    The interval of the worst problem is only a rough guide, because many resamples leave that problem out.

    Args:
        a: efficiencies of one model, of shape (problems,).
        b: efficiencies of the other model on the same problems in the same order.
        n_resamples: number of draws.
        level: level of the intervals, between 0 and 1.
        seed: seed of the draws.

    Raises:
        ConfigError: the arrays are empty or of different shapes, or a setting is out of its range.
    """
    a, b = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    if a.ndim != 1 or a.shape != b.shape or not len(a):
        raise ConfigError(f"a paired bootstrap needs both models' efficiency on each problem, got {a.shape}, {b.shape}")
    if n_resamples < 1 or not 0 < level < 1:
        raise ConfigError(
            f"n_resamples must be positive and level between 0 and 1, got {n_resamples} and {level}; "
            f"{N_RESAMPLES} and {LEVEL} are usual"
        )
    rng = np.random.default_rng(seed)
    step = max(_CELLS // len(a), 1)
    drawn: dict[str, list[Floats]] = {name: [] for name in STATISTICS}
    for start in range(0, n_resamples, step):
        members = rng.integers(len(a), size=(min(step, n_resamples - start), len(a)), dtype=np.int32)
        first, second = (_of_sorted(np.sort(e[members], axis=-1)) for e in (a, b))
        for name in STATISTICS:
            drawn[name].append(second[name] - first[name])
    tails = [50 * (1 - level), 50 * (1 + level)]
    found = {}
    for name, statistic in STATISTICS.items():
        low, high = np.percentile(np.concatenate(drawn[name]), tails)
        found[name] = Interval(float(statistic(b) - statistic(a)), float(low), float(high))
    return found


def _of_sorted(e: Floats) -> dict[str, Floats]:
    """Return :data:`STATISTICS` of efficiencies sorted along problems, of shape (resamples, problems).

    Sorting once is faster than one selection per statistic.
    """
    return {"mean": e.mean(axis=-1), "median": _quantile(e, 0.5), "p10": _quantile(e, 0.1), "worst": e[:, 0]}


def _quantile(e: Floats, q: float) -> Floats:
    """Interpolate between the two nearest of sorted values, as :func:`numpy.percentile` does."""
    below, part = divmod(q * (e.shape[-1] - 1), 1)
    low, high = e[:, int(below)], e[:, min(int(below) + 1, e.shape[-1] - 1)]
    between: Floats = low + part * (high - low)
    return between

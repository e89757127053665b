"""What measuring one kernel on one problem gave: a failure is a value with a kind, never a missing row."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEFT_OUT = "left_out"  # the plan does not ask for this pair: an outcome that makes no row


@dataclass(frozen=True)
class Samples:
    """Times of one kernel in milliseconds a launch, one a kept round, with the clocks (MHz) of those rounds."""

    times: tuple[float, ...]
    clocks: tuple[int, ...]
    unrolled: int


@dataclass(frozen=True)
class Outcome:
    """One (problem, kernel): samples where `status` is ``ok``, else the reason in `error`."""

    status: str
    error: str | None = None
    samples: Samples | None = None


def percentile(values: Sequence[float], q: float) -> float:
    """The q-th percentile (0 to 100) by linear interpolation, like ``numpy.percentile``."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * q / 100
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def summary(samples: Samples) -> dict[str, float | int | None]:
    """The measurement columns that come from samples alone."""
    return {
        "latency_ms": percentile(samples.times, 50),
        "latency_min_ms": min(samples.times),
        "latency_p20_ms": percentile(samples.times, 20),
        "latency_p80_ms": percentile(samples.times, 80),
        "repeats": len(samples.times),
        "unrolled": samples.unrolled,
        "sm_clock_mhz": int(statistics.median(samples.clocks)) if samples.clocks else None,
    }

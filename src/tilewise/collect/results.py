"""What measuring one kernel on one problem gave: a failure is a value with a kind, never a missing row."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

_DIGITS = 8  # significant ones of a time; the table holds float32
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


def columns(outcomes: Mapping[int, Outcome]) -> dict[str, list[Any]]:
    """``kernel`` and the columns of :func:`summary` for the kernels that have samples, in the order of `outcomes`."""
    good = [(i, o.samples) for i, o in outcomes.items() if o.samples is not None]
    rows = [{name: _rounded(value) for name, value in summary(samples).items()} for _, samples in good]
    return {"kernel": [i for i, _ in good], **{name: [row[name] for row in rows] for name in (rows[0] if rows else ())}}


def failures(outcomes: Mapping[int, Outcome]) -> list[tuple[str, str, list[int]]]:
    """(status, error, kernels) of those that have none; every failure has a reason, if need be its status."""
    groups: dict[tuple[str, str], list[int]] = {}
    for i, outcome in outcomes.items():
        if outcome.samples is None:
            groups.setdefault((outcome.status, outcome.error or outcome.status), []).append(i)
    return [(status, error, kernels) for (status, error), kernels in groups.items()]


def _rounded(value: float | int | None) -> float | int | None:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value

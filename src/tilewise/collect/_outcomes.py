"""Outcome of measuring one kernel on one problem; a failure is an outcome with a status, never a missing row."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

_DIGITS = 8  # significant digits of a time; the table holds float32
LEFT_OUT = "left_out"  # status of a pair that the plan excludes; such an outcome makes no row
_TIMES = ("latency_ms", "latency_min_ms", "latency_p20_ms", "latency_p80_ms")
_COUNTS = ("repeats", "unrolled", "sm_clock_mhz")
_MAX_COUNT = 2**53  # exact as a float


@dataclass(frozen=True)
class Samples:
    """Times of one kernel.

    Attributes:
        times: milliseconds per launch, one per accepted round.
        clocks: the multiprocessors' clock in MHz in those rounds; empty where it is unknown.
        unrolled: launches per sample.
    """

    times: tuple[float, ...]
    clocks: tuple[int, ...]
    unrolled: int


@dataclass(frozen=True)
class Outcome:
    """Result of one (problem, kernel) pair.

    Attributes:
        status: ``ok``, or the kind of failure.
        error: the reason of a failure.
        samples: the times, where `status` is ``ok``.
    """

    status: str
    error: str | None = None
    samples: Samples | None = None


def percentile(values: Sequence[float], q: float) -> float:
    """Return the q-th percentile (0 to 100) by linear interpolation, like ``numpy.percentile``."""
    ordered = sorted(values)
    at = (len(ordered) - 1) * q / 100
    low = int(at)
    high = min(low + 1, len(ordered) - 1)
    return ordered[low] + (ordered[high] - ordered[low]) * (at - low)


def summarize_samples(samples: Samples) -> dict[str, float | int | None]:
    """Return the measurement columns that samples determine: times in ms, counts, and the median clock in MHz."""
    return {
        "latency_ms": percentile(samples.times, 50),
        "latency_min_ms": min(samples.times),
        "latency_p20_ms": percentile(samples.times, 20),
        "latency_p80_ms": percentile(samples.times, 80),
        "repeats": len(samples.times),
        "unrolled": samples.unrolled,
        "sm_clock_mhz": int(statistics.median(samples.clocks)) if samples.clocks else None,
    }


def outcome_columns(outcomes: Mapping[int, Outcome]) -> dict[str, list[float | int | None]]:
    """Return the columns of the kernels that have samples, in the order of `outcomes`.

    Args:
        outcomes: by kernel index.

    Returns:
        ``kernel`` (the indices) and the columns of :func:`summarize_samples`, of equal length; times are rounded to 8
        significant digits.
    """
    measured = [(i, o.samples) for i, o in outcomes.items() if o.samples is not None]
    rows = [{name: _rounded(value) for name, value in summarize_samples(samples).items()} for _, samples in measured]
    columns = {name: [row[name] for row in rows] for name in (rows[0] if rows else ())}
    return {"kernel": [i for i, _ in measured], **columns}


def group_failures(outcomes: Mapping[int, Outcome]) -> list[tuple[str, str, list[int]]]:
    """Return (status, error, kernel indices) of kernels without samples; the status replaces a missing error."""
    groups: dict[tuple[str, str], list[int]] = {}
    for i, outcome in outcomes.items():
        if outcome.samples is None:
            groups.setdefault((outcome.status, writable_text(outcome.error or outcome.status)), []).append(i)
    return [(status, error, kernels) for (status, error), kernels in groups.items()]


def writable_text(text: str) -> str:
    """Return a text without halves of characters, which no file can hold; a library's message may have some."""
    return text.encode(errors="replace").decode()


def check_outcomes(ok: Mapping[str, Sequence[object]], failed: Iterable[tuple[str, str, Sequence[int]]]) -> None:
    """Check that outcomes fit into a measurement table. Impossible figures do; its quality checks report them.

    Args:
        ok: as :func:`outcome_columns` returns it; columns may be missing.
        failed: as :func:`group_failures` returns it.

    Raises:
        ValueError: a column is unknown or of another length, a figure is no number, a kernel occurs twice, or a status
            or error is no text.
        KeyError, TypeError, OverflowError: a part has another form.
    """
    groups = [(status, error, list(kernels)) for status, error, kernels in failed]
    kernels = [*ok["kernel"], *(kernel for group in groups for kernel in group[2])]
    if unknown := set(ok) - {"kernel", *_TIMES, *_COUNTS}:
        raise ValueError(f"columns must be those of outcomes, got {sorted(unknown)[0]!r:.60}")
    if len({len(column) for column in ok.values()}) > 1 or (ok["kernel"] and "latency_ms" not in ok):
        raise ValueError("times must be one per kernel, in columns of equal lengths")
    if not all(type(k) is int and k >= 0 for k in kernels) or len(set(kernels)) < len(kernels):
        raise ValueError("kernels must be distinct indices into the pool")
    for name, column in ok.items():
        if name != "kernel" and not all(_is_figure(name, value) for value in column):
            raise ValueError(f"{name} must hold numbers")
    for status, error, _ in groups:
        if type(status) is not str or type(error) is not str or status == "ok":
            raise ValueError("failures must state status and error as text")
        (status + error).encode()  # a UnicodeEncodeError is a ValueError: no table can hold half a character


def _is_figure(name: str, value: object) -> bool:
    if value is None:
        return name != "latency_ms"
    if name in _COUNTS:
        return type(value) is int and abs(value) < _MAX_COUNT
    return type(value) is float or (type(value) is int and abs(value) < _MAX_COUNT)


def _rounded(value: float | int | None) -> float | int | None:
    return float(f"{value:.{_DIGITS}g}") if isinstance(value, float) else value

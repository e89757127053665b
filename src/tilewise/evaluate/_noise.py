"""Measurement noise from repeated runs: no model can be expected to beat a second measurement."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tilewise.data import TARGET_COLUMNS, Measurements, chunks_of, is_primary, judge_runs
from tilewise.evaluate._evaluation import NoiseCeiling
from tilewise.metrics import Floats, Ints
from tilewise.ops import OPS, Target

MIN_REPEATED = 3  # repeated kernels that a problem needs for a noise figure
PERCENTILE = 90
# Columns that repeats are judged by, besides those of target and problem: to sort all columns takes seconds.
_JUDGED = ("kernel_name", "run_id", "measured_at", "is_valid", "latency_ms", "tflops")


def noise_ceiling(rows: pd.DataFrame | Measurements, target: Target) -> NoiseCeiling | None:
    """Pick each repeated problem's fastest kernel by one run, judge it by the others, and average over the runs.

    Args:
        rows: a measurement table with its repeats.
        target: the target whose rows count.

    Returns:
        None where no problem was measured by two runs.
    """
    judged = pd.concat([judge_runs(chunk.rows, target.op) for chunk in chunks_of(rows, target, _columns(target))])
    if not len(judged):
        return None
    p10, p50 = np.percentile(judged["efficiency"], [10, 50])
    same = float(judged["same"].mean())
    return NoiseCeiling(len(judged), float(judged["efficiency"].mean()), float(p50), float(p10), same)


def measured_apart(rows: pd.DataFrame, frame: pd.DataFrame, target: Target) -> tuple[Floats, Floats]:
    """Return each row's TFLOPS in the primary run, and the mean of the other runs, of shape (rows,); NaN where unknown.

    Args:
        rows: distinct pairs of problem and kernel.
        frame: the measurement table that they come from, with its repeats.
        target: target of the rows.
    """
    names = [*OPS[target.op].column_names(), "kernel_name"]
    (known,) = (chunk.rows for chunk in chunks_of(frame, target, _columns(target)))
    first = is_primary(known, target.op)
    known = known[[*names, "tflops"]].assign(first=first)[known["is_valid"].to_numpy()].sort_values("tflops")

    def mean(of: pd.DataFrame) -> Floats:
        # The rows are sorted by TFLOPS, so that the order of the file cannot change the sums.
        found = of.groupby(names, sort=False, as_index=False)["tflops"].mean()
        return np.asarray(rows[names].merge(found, on=names, how="left")["tflops"], dtype=np.float64)

    return mean(known[known["first"]]), mean(known[~known["first"]])


def repeat_noise(problem: Ints, measured: Floats, again: Floats) -> Floats:
    """Return the relative deviation between repeats of a problem's kernels, of shape (problems,); NaN for too few.

    It is the 90th percentile of the deviation of ``log(again / measured)`` from its median. A run that is faster as a
    whole (clocks) changes no ranking, so the common part does not count.

    Args:
        problem: number of each row's problem, ascending, from 0 without gaps, of shape (rows,).
        measured: TFLOPS, of shape (rows,).
        again: TFLOPS of other runs, of shape (rows,); NaN where not repeated.
    """
    noise = np.full(int(problem[-1]) + 1 if len(problem) else 0, np.nan)
    known = np.isfinite(again)
    ratio = pd.Series(np.log(again[known] / measured[known])).groupby(problem[known])
    deviation = (ratio.obj - ratio.transform("median")).abs().groupby(problem[known])
    spread = deviation.quantile(PERCENTILE / 100)[deviation.size() >= MIN_REPEATED]
    noise[spread.index.to_numpy(dtype=np.int64)] = spread.to_numpy()
    return noise


def _columns(target: Target) -> tuple[str, ...]:
    return (*(c.name for c in TARGET_COLUMNS), *OPS[target.op].column_names(), *_JUDGED)

"""What repeats say: no model can be expected to beat a second measurement."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tilewise.data.repeats import judge_repeats, repeated_pairs
from tilewise.data.rows import is_of
from tilewise.data.splits import is_primary
from tilewise.evaluate.result import NoiseCeiling
from tilewise.metrics import Floats, Ints
from tilewise.ops import OPS, Target

MIN_REPEATED = 3  # kernels of a problem that were measured again, to speak of its noise
PERCENTILE = 90


def noise_ceiling(frame: pd.DataFrame, target: Target) -> NoiseCeiling | None:
    """Pick each repeated problem's fastest kernel by one run, judge it by another.

    Only kernels that are valid in both runs of a pair take part. Every ordered pair of a problem's runs is a judgement;
    a problem's efficiency is their mean.

    Args:
        frame: a measurement table, repeats included.
        target: whose rows to look at.

    Returns:
        None where no problem was measured by two runs.
    """
    judged = judge_repeats(repeated_pairs(frame[is_of(frame, target)], target.op))
    if not len(judged):
        return None
    p10, p50 = np.percentile(judged["efficiency"], [10, 50])
    same = float(judged["same"].mean())
    return NoiseCeiling(len(judged), float(judged["efficiency"].mean()), float(p50), float(p10), same)


def measured_again(rows: pd.DataFrame, frame: pd.DataFrame, target: Target) -> Floats:
    """(rows,) TFLOPS of the same kernel on the same problem in the other runs, their mean; NaN where there is none.

    Args:
        rows: valid rows of the problems' primary runs.
        frame: the table that they come from, repeats included.
        target: of the rows.
    """
    names = [*OPS[target.op].column_names(), "kernel_name"]
    others = frame[is_of(frame, target)]
    if len(others):
        others = others[~is_primary(others, target.op) & others["is_valid"].to_numpy()]
    if not len(others):
        return np.full(len(rows), np.nan)
    others = others[[*names, "tflops"]].sort_values("tflops")  # a mean that no order of rows can change
    again = others.groupby(names, sort=False, as_index=False)["tflops"].mean()
    return np.asarray(rows[names].merge(again, on=names, how="left")["tflops"], dtype=np.float64)


def repeat_noise(problem: Ints, measured: Floats, again: Floats) -> Floats:
    """(problems,) how far repeats of a problem's kernels stray from each other, relative; NaN where too few were.

    It is the 90th percentile of the deviation of ``log(again / measured)`` from its median: a run that is faster as
    a whole (clocks) changes no ranking, so the common part does not count.

    Args:
        problem: (rows,) ascending, numbered from 0 without gaps.
        measured: (rows,) TFLOPS.
        again: (rows,) TFLOPS of other runs, NaN where there are none.
    """
    noise = np.full(int(problem[-1]) + 1 if len(problem) else 0, np.nan)
    known = np.isfinite(again)
    ratio = pd.Series(np.log(again[known] / measured[known])).groupby(problem[known])
    deviation = (ratio.obj - ratio.transform("median")).abs().groupby(problem[known])
    spread = deviation.quantile(PERCENTILE / 100)[deviation.size() >= MIN_REPEATED]
    noise[spread.index.to_numpy(dtype=np.int64)] = spread.to_numpy()
    return noise

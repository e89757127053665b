"""What repeats say: no model can be expected to beat a second measurement."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tilewise.data.labels import judge_runs
from tilewise.data.rows import is_of
from tilewise.data.splits import is_primary
from tilewise.evaluate.result import NoiseCeiling
from tilewise.metrics import Floats, Ints
from tilewise.ops import OPS, Target

MIN_REPEATED = 3  # kernels of a problem that were measured again, to speak of its noise
PERCENTILE = 90


def noise_ceiling(frame: pd.DataFrame, target: Target) -> NoiseCeiling | None:
    """Pick each repeated problem's fastest kernel by one run, judge it by the others: the mean over the runs.

    Args:
        frame: a measurement table, repeats included.
        target: whose rows to look at.

    Returns:
        None where no problem was measured by two runs.
    """
    judged = judge_runs(frame[is_of(frame, target)], target.op)
    if not len(judged):
        return None
    p10, p50 = np.percentile(judged["efficiency"], [10, 50])
    same = float(judged["same"].mean())
    return NoiseCeiling(len(judged), float(judged["efficiency"].mean()), float(p50), float(p10), same)


def measured_apart(rows: pd.DataFrame, frame: pd.DataFrame, target: Target) -> tuple[Floats, Floats]:
    """(rows,) TFLOPS of a kernel on its problem in the primary run, and the mean of the others; NaN where unknown.

    Args:
        rows: of problems and kernels, each once.
        frame: the table that they come from, repeats included.
        target: of the rows.
    """
    names = [*OPS[target.op].column_names(), "kernel_name"]
    known = frame[is_of(frame, target)]
    first = is_primary(known, target.op)
    known = known[[*names, "tflops"]].assign(first=first)[known["is_valid"].to_numpy()].sort_values("tflops")

    def mean(of: pd.DataFrame) -> Floats:  # one that no order of rows can change
        found = of.groupby(names, sort=False, as_index=False)["tflops"].mean()
        return np.asarray(rows[names].merge(found, on=names, how="left")["tflops"], dtype=np.float64)

    return mean(known[known["first"]]), mean(known[~known["first"]])


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

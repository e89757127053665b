"""The noise ceiling: no model can be expected to beat a second measurement."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tilewise.data.rows import is_of, problem_index
from tilewise.evaluate.result import NoiseCeiling
from tilewise.ops import Target


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
    rows = frame[is_of(frame, target) & frame["is_valid"].to_numpy()]
    if not len(rows):
        return None
    rows = pd.DataFrame(
        {
            "problem": problem_index(rows, target.op),
            "run_id": rows["run_id"].to_numpy(),
            "kernel": rows["kernel_name"].to_numpy(),
            "tflops": rows["tflops"].to_numpy(),
        }
    )
    runs = rows.groupby("problem")["run_id"].nunique()
    repeated = rows[rows["problem"].isin(runs[runs > 1].index)]
    judged = [_judge(of_problem) for _, of_problem in repeated.groupby("problem")]
    efficiency, same = (np.array([j[i] for j in judged if j is not None]) for i in (0, 1))
    if not len(efficiency):
        return None
    p10, p50 = np.percentile(efficiency, [10, 50])
    return NoiseCeiling(len(efficiency), float(efficiency.mean()), float(p50), float(p10), float(same.mean()))


def _judge(rows: pd.DataFrame) -> tuple[float, float] | None:
    """Mean efficiency and rate of equal picks over the pairs of a problem's runs; None without a kernel in both."""
    by_run = rows.drop_duplicates(["run_id", "kernel"]).pivot(index="kernel", columns="run_id", values="tflops")
    efficiency, same = [], []
    for picking in by_run.columns:
        for judging in by_run.columns.difference([picking]):
            both = by_run[[picking, judging]].dropna()
            if len(both):
                pick = both[picking].idxmax()
                efficiency.append(both.loc[pick, judging] / both[judging].max())
                same.append(pick == both[judging].idxmax())
    return (float(np.mean(efficiency)), float(np.mean(same))) if efficiency else None

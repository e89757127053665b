"""The noise ceiling: no model can be expected to beat a second measurement."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tilewise.data.repeats import judge_repeats, repeated_pairs
from tilewise.data.rows import is_of
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
    judged = judge_repeats(repeated_pairs(frame[is_of(frame, target)], target.op))
    if not len(judged):
        return None
    p10, p50 = np.percentile(judged["efficiency"], [10, 50])
    same = float(judged["same"].mean())
    return NoiseCeiling(len(judged), float(judged["efficiency"].mean()), float(p50), float(p10), same)

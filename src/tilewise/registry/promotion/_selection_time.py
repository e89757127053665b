"""The time that a model takes to select a kernel, relative to another: same problems, same process, interleaved."""

from __future__ import annotations

import time

import numpy as np
import pandas as pd

from tilewise.model import TrainedModel
from tilewise.ops import OPS, Problem

N_PROBLEMS = 16
ROUNDS = 3
_ATTEMPTS = 3


def selection_time_ratio(a: TrainedModel, b: TrainedModel, problems: pd.DataFrame, *, allowed: float) -> float:
    """Measure the selection time of `a` / that of `b`: the median over problems of the fastest of a few rounds.

    A busy machine can only make a model look slower. So a ratio above `allowed` is measured again, and the lowest of
    three comparisons counts.

    Args:
        a: A model.
        b: Another model of the same target.
        problems: One row per problem; evenly spread rows are used.
        allowed: The ratio that needs no second measurement.
    """
    op = OPS[a.target.op]
    chosen = problems.iloc[np.unique(np.linspace(0, len(problems) - 1, N_PROBLEMS).round().astype(int))]
    parsed = [op.from_dict(row) for row in chosen[list(op.column_names())].to_dict("records")]
    best = float("inf")
    for _ in range(_ATTEMPTS):
        best = min(best, _ratio(a, b, parsed))
        if best <= allowed:
            break
    return best


def _ratio(a: TrainedModel, b: TrainedModel, problems: list[Problem]) -> float:
    seconds = np.empty((2, ROUNDS, len(problems)))
    for r in range(ROUNDS):
        for p, problem in enumerate(problems):
            for m, model in enumerate((a, b)):
                start = time.perf_counter()
                model.rank(problem, 1)
                seconds[m, r, p] = time.perf_counter() - start
    ours, theirs = seconds.min(axis=1)
    return float(np.median(ours / theirs))

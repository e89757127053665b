"""The fastest times of the vendor's calls and of our own kernels in committed tables, problem by problem."""

from __future__ import annotations

import pandas as pd

from tilewise.data import TargetTable
from tilewise.ops import Problem, Target


def fastest_times(frame: pd.DataFrame, target: Target, pipeline: str) -> tuple[list[Problem], pd.DataFrame]:
    """Return the problems that both the vendor and an own kernel compute, and their milliseconds.

    Args:
        frame: a measurement table of `target`.
        target: a target with the vendor's calls in its pool.
        pipeline: a pipeline whose kernels are told apart.

    Returns:
        The problems, and a row for each: `call_ms` of the vendor's fastest call, `own_ms` of our fastest kernel,
        `others_ms` of the fastest one of other pipelines and `these_ms` of `pipeline`, NaN where no such kernel ran.
    """
    labels = TargetTable.of(frame, target).labelled()
    rows = labels.rows[["latency_ms", "backend", "pipeline"]].assign(problem=labels.problem)
    rows = rows[labels.rows["is_valid"].to_numpy(dtype=bool)]
    is_call, is_this = rows["backend"] == "vendor", rows["pipeline"] == pipeline
    chosen = {"call_ms": is_call, "own_ms": ~is_call, "others_ms": ~is_call & ~is_this, "these_ms": is_this}
    by_problem = {name: rows[of].groupby("problem")["latency_ms"].min() for name, of in chosen.items()}
    times = pd.DataFrame(by_problem).dropna(subset=["call_ms", "own_ms"])
    return [labels.problems[number] for number in times.index], times.reset_index(drop=True)

"""Pairs of measurements of the same kernel and problem by two runs."""

from __future__ import annotations

import pandas as pd

from tilewise.data._rows import problem_index


def repeated_pairs(frame: pd.DataFrame, op: str) -> pd.DataFrame:
    """Return every (problem, kernel) that is valid in two runs, once for each ordered pair of its runs.

    Args:
        frame: rows of one target, of any status.
        op: the target's op.

    Returns:
        Columns `problem` (a number), `kernel`, and `run_id`, `tflops`, `latency_ms` of either run, those of the second
        with the suffix ``_again``; sorted by problem, runs and kernel name.
    """
    rows = pd.DataFrame(
        {
            "problem": problem_index(frame, op),
            "kernel": frame["kernel_name"].to_numpy(),
            **{n: frame[n].to_numpy() for n in ("run_id", "tflops", "latency_ms")},
        }
    )[frame["is_valid"].to_numpy()].drop_duplicates(["problem", "kernel", "run_id"])
    runs = rows.groupby("problem")["run_id"].nunique()
    rows = rows[rows["problem"].isin(runs[runs > 1].index)]
    both = rows.merge(rows, on=["problem", "kernel"], suffixes=("", "_again"))
    both = both[both["run_id"] != both["run_id_again"]]
    return both.sort_values(["problem", "run_id", "run_id_again", "kernel"], kind="stable").reset_index(drop=True)

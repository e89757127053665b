"""What all runs of a problem say together of its kernels: the figures that models learn and are judged by."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tilewise.data.columns import DERIVED
from tilewise.data.rows import problem_index
from tilewise.data.splits import is_primary

MIN_COMMON = 3  # kernels that a run shares with the primary one, to tell how much faster it is as a whole
_TIMES = ("latency_ms", "latency_min_ms", "latency_p20_ms", "latency_p80_ms")


def labelled(frame: pd.DataFrame, op: str) -> pd.DataFrame:
    """One row for each problem and kernel: the median of its runs.

    A run is first freed of what shifts all its kernels alike (clocks, a driver): the median of log(latency / latency in
    the problem's primary run) over the kernels of both. A run with fewer than MIN_COMMON such kernels is left out. The
    result has the level of the median run. A kernel is valid if it is in half of its runs or more; the row is otherwise
    the primary run's, or that of the first other run that agrees. Problems of one run are as they were.

    Args:
        frame: a measurement table of one target.
        op: the target's.

    Returns:
        Rows of `frame`, in its order but numbered anew, with other times and rates where there were several runs.
    """
    frame = frame.reset_index(drop=True)
    if not len(frame):
        return frame
    primary = pd.Series(is_primary(frame, op), index=frame.index)
    keys = pd.DataFrame({"problem": problem_index(frame, op), "kernel": frame["kernel_name"], "run": frame["run_id"]})
    repeated = ~primary.groupby(keys["problem"]).transform("all")
    if not repeated.any():
        return frame
    rows = keys[repeated].assign(primary=primary, valid=frame["is_valid"], log=np.log(frame["latency_ms"]))
    rows = rows.sort_values(["problem", "kernel", "primary", "run"], ascending=[True, True, False, True], kind="stable")
    rows = _level(rows.drop_duplicates(["problem", "kernel", "run"]))
    pair = [rows["problem"], rows["kernel"]]
    rows = rows[rows["valid"] == (rows["valid"].astype(float).groupby(pair).transform("mean") >= 0.5)]
    pair = [rows["problem"], rows["kernel"]]
    label = rows["level"].groupby(pair).transform("median")
    chosen = ~rows.duplicated(["problem", "kernel"])
    factor = np.exp(label - rows["log"])[chosen & rows["valid"]]
    found = frame[~repeated | frame.index.isin(rows.index[chosen])].copy()
    for name in [n for n in (*_TIMES, *DERIVED) if n in found]:
        scaled = found.loc[factor.index, name]
        found.loc[factor.index, name] = scaled / factor if name in DERIVED else scaled * factor
    return found.reset_index(drop=True)


def valid_labels(frame: pd.DataFrame, op: str) -> pd.DataFrame:
    """The rows of :func:`labelled` whose kernels are valid."""
    rows = labelled(frame, op)
    return rows[rows["is_valid"].to_numpy()]


def judge_runs(frame: pd.DataFrame, op: str) -> pd.DataFrame:
    """Pick each problem's fastest kernel by one run, judge it by the label that the other runs make.

    Args:
        frame: a measurement table of one target.
        op: the target's.

    Returns:
        A row a problem that several runs measured: `efficiency`, what the pick reaches of the others' fastest, and
        `same`, how often both name the same kernel; means over the runs, ties going to the first name. Only kernels
        that are valid on both sides take part.
    """
    rows = frame.assign(problem=problem_index(frame, op))
    runs = rows.groupby("problem")["run_id"].transform("nunique")
    rows = rows[runs > 1].sort_values(["problem", "kernel_name"], kind="stable")
    judged = []
    for run in sorted(rows["run_id"].unique()):
        mine = rows["run_id"] == run
        others = labelled(rows[~mine & rows["problem"].isin(rows.loc[mine, "problem"])], op)
        sides = (r.loc[r["is_valid"], ["problem", "kernel_name", "tflops"]] for r in (rows[mine], others))
        both = pd.merge(*sides, on=["problem", "kernel_name"], suffixes=("", "_others"))
        by_problem = both.groupby("problem")
        pick, best = by_problem["tflops"].idxmax(), by_problem["tflops_others"].idxmax()
        reached = both["tflops_others"].to_numpy()
        judged.append(
            pd.DataFrame({"efficiency": reached[pick] / reached[best], "same": pick == best}, index=pick.index)
        )
    if not judged:
        return pd.DataFrame({"efficiency": [], "same": []}, index=pd.Index([], name="problem"), dtype=float)
    return pd.concat(judged).astype(float).groupby("problem").mean()


def _level(rows: pd.DataFrame) -> pd.DataFrame:
    """The rows of the runs that can be compared, with `level`: the logarithm as in the median run."""
    of_primary = rows[rows["primary"] & rows["valid"]].set_index(["problem", "kernel"])["log"]
    pairs = pd.MultiIndex.from_frame(rows[["problem", "kernel"]])
    apart = (rows["log"] - of_primary.reindex(pairs).to_numpy()).where(rows["valid"])
    run = [rows["problem"], rows["run"]]
    common, shift = apart.groupby(run).transform("count"), apart.groupby(run).transform("median")
    kept = rows["primary"] | (common >= MIN_COMMON)
    shifts = shift.where(~rows["primary"], 0.0)[kept]
    runs = rows[kept].assign(shift=shifts)
    middle = runs.drop_duplicates(["problem", "run"]).groupby("problem")["shift"].median()
    return runs.assign(level=runs["log"] - runs["shift"] + runs["problem"].map(middle))

"""Labels: one measurement per problem and kernel, combined from all runs, for training and evaluation."""

from __future__ import annotations

import numpy as np
import pandas as pd

from tilewise.data._columns import DERIVED_COLUMNS
from tilewise.data._rows import Ints, problem_index, taken
from tilewise.data._splits import primary_of

MIN_COMMON = 3  # kernels that a run must share with runs whose shift is known, to estimate its own
_TIMES = ("latency_ms", "latency_min_ms", "latency_p20_ms", "latency_p80_ms")


def labelled(frame: pd.DataFrame, op: str) -> pd.DataFrame:
    """Return one row per problem and kernel: the median over its runs.

    A run's shift (clocks, driver) affects all its kernels alike and is removed first. The shift is the median of
    log(latency / latency in the problem's primary run) over the kernels of both runs. A run that shares fewer than
    MIN_COMMON kernels with the primary one is compared with all runs whose shift is known, as often as that reaches
    further runs; others are dropped. The result is at the level of the median run.

    A kernel is valid if at least half of its runs say so. The row's other columns come from the primary run, or from
    the first other run that agrees with the majority. Rows of problems with a single run are unchanged. Of a kernel
    that a run lists twice for a problem, the first row counts.

    Args:
        frame: a measurement table of one target.
        op: the target's op.

    Returns:
        Rows of `frame` in its order, with a new index. Times and rates differ where a problem has several runs.
    """
    frame = frame.reset_index(drop=True)
    return _combined(frame, problem_index(frame, op), op) if len(frame) else frame


def valid_labels(frame: pd.DataFrame, op: str) -> pd.DataFrame:
    """Return the rows of :func:`labelled` whose kernels are valid."""
    rows = labelled(frame, op)
    return taken(rows, rows["is_valid"].to_numpy())


def judge_runs(frame: pd.DataFrame, op: str) -> pd.DataFrame:
    """Pick each problem's fastest kernel by one run, and judge the pick by the labels of the other runs.

    Only kernels that are valid on both sides take part. Ties go to the first name.

    Args:
        frame: a measurement table of one target.
        op: the target's op.

    Returns:
        One row per problem that several runs measured, with means over the runs: `efficiency`, the pick's TFLOPS /
        those of the others' fastest kernel, and `same`, the share of runs that pick the others' fastest kernel.
    """
    rows = frame.assign(problem=problem_index(frame, op))
    runs = rows.groupby("problem")["run_id"].transform("nunique")
    rows = rows[runs > 1].sort_values(["problem", "kernel_name"], kind="stable")
    judged = []
    for run in sorted(rows["run_id"].unique()):
        in_run = rows["run_id"] == run
        rest = rows[~in_run & rows["problem"].isin(rows.loc[in_run, "problem"])].reset_index(drop=True)
        others = _combined(rest, np.unique(rest["problem"], return_inverse=True)[1], op)
        sides = (r.loc[r["is_valid"], ["problem", "kernel_name", "tflops"]] for r in (rows[in_run], others))
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


def _combined(frame: pd.DataFrame, problem: Ints, op: str) -> pd.DataFrame:
    """Return :func:`labelled` of a table with a new index, given the number of each row's problem."""
    # Numbers in the order of the names: groups of numbers are found several times as fast.
    kernel, run = (pd.factorize(frame[name], sort=True)[0] for name in ("kernel_name", "run_id"))
    keys = pd.DataFrame({"problem": problem, "kernel": kernel, "run": run})
    again = keys.duplicated()  # a run may list a kernel twice, and all readers must see the same row
    if again.any():
        frame, keys = (f[~again].reset_index(drop=True) for f in (frame, keys))
    problem = keys["problem"].to_numpy()
    primary = primary_of(problem, frame, op)
    repeated = (np.bincount(problem, ~primary) > 0)[problem]
    if not repeated.any():
        return frame
    rows = keys.assign(primary=primary)[repeated].assign(valid=frame["is_valid"], log=np.log(frame["latency_ms"]))
    rows = rows.sort_values(["problem", "kernel", "primary", "run"], ascending=[True, True, False, True], kind="stable")
    rows = _level(rows)
    pair = [rows["problem"], rows["kernel"]]
    rows = rows[rows["valid"] == (rows["valid"].astype(float).groupby(pair).transform("mean") >= 0.5)]
    pair = [rows["problem"], rows["kernel"]]
    label = rows["level"].groupby(pair).transform("median")
    chosen = ~rows.duplicated(["problem", "kernel"])
    factor = np.exp(label - rows["log"])[chosen & rows["valid"]]
    found = frame[~repeated | frame.index.isin(rows.index[chosen])].copy()
    for name in [n for n in (*_TIMES, *DERIVED_COLUMNS) if n in found]:
        scaled = found.loc[factor.index, name]
        found.loc[factor.index, name] = scaled / factor if name in DERIVED_COLUMNS else scaled * factor
    return found.reset_index(drop=True)


def _level(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of comparable runs, with a column `level`: log latency at the level of the median run."""
    pair, run = [rows["problem"], rows["kernel"]], [rows["problem"], rows["run"]]
    shifts = pd.Series(np.where(rows["primary"], 0.0, np.nan), rows.index)  # log latency / that by the primary run
    log = rows["log"].where(rows["valid"])
    while True:
        known = (log - shifts).groupby(pair).transform("median")
        difference = (log - known).where(shifts.isna())
        common, shift = difference.groupby(run).transform("count"), difference.groupby(run).transform("median")
        if not (reached := common >= MIN_COMMON).any():
            break
        shifts = shifts.where(~reached, shift)
    runs = rows.assign(shift=shifts)[shifts.notna()]
    middle = runs.drop_duplicates(["problem", "run"]).groupby("problem")["shift"].median()
    return runs.assign(level=runs["log"] - runs["shift"] + runs["problem"].map(middle))

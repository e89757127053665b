"""Whether a model's trust in its selections is deserved: coverage, adaptive depth, and both by distance and by risk.

Losses are as measured: the oracle is the fastest of many noisy measurements, so a loss holds some noise (it is never
negative), here as in the calibration. `coverage_again` asks the repeats, which did not choose the oracle.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from tilewise.data.rows import Bools
from tilewise.data.splits import group_keys
from tilewise.evaluate.distance import BINS
from tilewise.metrics import Floats, Ints, Selections
from tilewise.model.trained import TrainedModel
from tilewise.model.trust import LEVEL, TOLERANCE, Trust
from tilewise.ops import OPS, Problem

TOLERANCES = (TOLERANCE, 0.01, 0.005)
NORMAL = 1.96  # standard errors either side: 95 %
ROUNDING = 1e-9  # of efficiencies, when they are compared with a bound


def trust_columns(
    model: TrainedModel,
    rows: pd.DataFrame,
    problems: tuple[Problem, ...],
    problem: Ints,
    candidate: Bools,
    predicted: Floats,
    chosen: Selections,
) -> pd.DataFrame:
    """What the model says of each selection, and what comes of it; a row a problem, no column without a calibration.

    Args:
        model: which selected.
        rows: measured rows, sorted by problem.
        problems: the problems, in order.
        problem: (rows,) number of each row's.
        candidate: (rows,) which could be selected.
        predicted: (rows,) TFLOPS, of candidates.
        chosen: what was selected.

    Returns:
        `regret_bound`, and for each of :data:`TOLERANCES` the columns of :func:`depth_columns`: how many to measure (0:
        all), how many that are, and the efficiency that this leaves.
    """
    calibration = model.calibration
    if calibration is None:
        return pd.DataFrame(index=range(len(problems)))
    place = np.flatnonzero(candidate)
    known = rows.iloc[place]
    rates = model.log_rates(
        {n: known[n].to_numpy() for n in OPS[model.target.op].column_names()},
        {n: known[n].to_numpy() for n in model.pool.columns},
    )
    log_tflops = np.log(predicted[place])
    bounds = np.searchsorted(problem[place], np.arange(len(problems) + 1))
    parts = [slice(a, b) for a, b in pairwise(bounds.tolist())]

    def judge(tolerance: float) -> list[Trust]:
        return [
            calibration.trust(p, log_tflops[s], None if rates is None else rates[s], tolerance)
            for p, s in zip(problems, parts, strict=True)
        ]

    measured = rows["tflops"].to_numpy(dtype=np.float64)
    best = np.array([measured[place[s]].max() for s in parts]) / measured[chosen.oracle]
    columns: dict[str, Any] = {}
    for tolerance in TOLERANCES:
        said = judge(tolerance)
        columns.setdefault("regret_bound", [t.regret[1] for t in said])
        k = np.array([t.k or 0 for t in said])
        names = depth_columns(tolerance)
        columns[names[0]] = k
        columns[names[1]] = np.where(k > 0, np.minimum(k, np.diff(bounds)), np.diff(bounds))
        columns[names[2]] = np.where(k > 0, chosen.top_efficiency[np.arange(len(k)), k - 1], best)
    return pd.DataFrame(columns)


def depth_columns(tolerance: float) -> tuple[str, str, str]:
    """Names of the columns of a tolerance: k, kernels measured, efficiency of the fastest of them."""
    percent = f"{100 * tolerance:g}"
    return f"k_{percent}", f"measured_{percent}", f"efficiency_{percent}"


def trust_metrics(op: str, per_problem: pd.DataFrame) -> dict[str, Any] | None:
    """How trust turned out, as plain data; None where the model has no calibration.

    `coverage` is the share of problems whose loss is within its bound, with a 95 % interval that counts problems of one
    group key as one draw; `mean_bound` the average bound, `zero_bound_rate` how often it says "the oracle". The lists
    hold a record a tolerance (`depth`), a distance to the training set, and a bound.
    """
    if "regret_bound" not in per_problem:
        return None
    covered = is_covered(per_problem)
    shape = np.unique(group_keys(op, per_problem), axis=0, return_inverse=True)[1].reshape(-1)
    spread = float(np.sqrt((np.bincount(shape, covered - covered.mean()) ** 2).sum()) / len(covered))
    again = per_problem["efficiency_again"].to_numpy(dtype=np.float64)
    repeated = np.isfinite(again)
    bound = per_problem["regret_bound"].to_numpy()
    within = 1 - again[repeated] <= bound[repeated] + ROUNDING
    return {
        "level": LEVEL,
        "coverage": float(covered.mean()),
        "coverage_low": max(float(covered.mean()) - NORMAL * spread, 0.0),
        "coverage_high": min(float(covered.mean()) + NORMAL * spread, 1.0),
        "n_shapes": int(shape.max()) + 1,
        "n_again": int(repeated.sum()),
        "coverage_again": float(within.mean()) if repeated.any() else None,
        "mean_bound": float(bound.mean()),
        "zero_bound_rate": float((bound == 0).mean()),
        "depth": [_depth(per_problem, tolerance) for tolerance in TOLERANCES],
        "by_distance": _groups(per_problem, "distance", per_problem["distance"].to_numpy(), [name for _, name in BINS]),
        "by_bound": _groups(per_problem, "bound", bound, sorted(set(bound.tolist()))),
    }


def is_covered(per_problem: pd.DataFrame) -> Floats:
    """(problems,) 1 where the selection loses no more than its bound, else 0."""
    lost = 1 - per_problem["efficiency"].to_numpy(dtype=np.float64)
    bound = per_problem["regret_bound"].to_numpy(dtype=np.float64)
    return np.where(lost <= bound + ROUNDING, 1.0, 0.0)


def _depth(per_problem: pd.DataFrame, tolerance: float) -> dict[str, float]:
    """What measuring the k best, k chosen for each problem, costs and leaves."""
    k, measured, efficiency = (per_problem[n].to_numpy(dtype=np.float64) for n in depth_columns(tolerance))
    return {
        "tolerance": tolerance,
        "mean_k": float(k[k > 0].mean()) if (k > 0).any() else 0.0,
        "measure_rate": float((k == 0).mean()),
        "mean_measured": float(measured.mean()),
        "within_rate": float((1 - efficiency <= tolerance + ROUNDING).mean()),
        "mean_efficiency": float(efficiency.mean()),
        "p10_efficiency": float(np.percentile(efficiency, 10)),
    }


def _groups(per_problem: pd.DataFrame, name: str, of: Any, values: list[Any]) -> list[dict[str, Any]]:
    """A record for each value that occurs."""
    covered, e = is_covered(per_problem), per_problem["efficiency"].to_numpy(dtype=np.float64)
    k = per_problem[depth_columns(TOLERANCE)[0]].to_numpy(dtype=np.float64)
    records = []
    for value in values:
        own = of == value
        if own.any():
            records.append(
                {
                    name: value,
                    "n_problems": int(own.sum()),
                    "mean_efficiency": float(e[own].mean()),
                    "p10_efficiency": float(np.percentile(e[own], 10)),
                    "p90_loss": float(np.percentile(1 - e[own], 90)),
                    "mean_bound": float(per_problem["regret_bound"].to_numpy()[own].mean()),
                    "coverage": float(covered[own].mean()),
                    "mean_k": float(k[own & (k > 0)].mean()) if (own & (k > 0)).any() else None,
                }
            )
    return records

"""Coverage of a model's regret bounds, and adaptive measuring, overall and by distance and bound.

Losses are as measured. The oracle is the fastest of many noisy measurements, so a loss contains some noise and is never
negative, here as in the calibration. `coverage_again` uses the repeats, which did not choose the oracle.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pandas as pd

from tilewise.data import group_keys
from tilewise.evaluate._distance import BINS
from tilewise.evaluate._scored_table import ScoredTable
from tilewise.metrics import Floats
from tilewise.model import LEVEL, TOLERANCE

Record = dict[str, str | float | None]
TOLERANCES = (TOLERANCE, 0.01, 0.005)
NORMAL = 1.96  # standard errors on either side: 95 %
ROUNDING = 1e-9  # of efficiencies, when they are compared with a bound


def confidence_columns(scored: ScoredTable) -> pd.DataFrame:
    """Return the confidence in each selection and the result of following it, one row per problem.

    Returns:
        `regret_bound`, and for each of :data:`TOLERANCES` the columns of :func:`depth_columns`: the number of kernels
        to measure (0: all), the number measured, and the efficiency reached. No columns without a calibration.
    """
    model, table, chosen = scored.model, scored.table, scored.chosen
    calibration, problems = model.calibration, table.problems
    if calibration is None:
        return pd.DataFrame(index=range(len(problems)))
    place, candidates = np.flatnonzero(scored.candidate), scored.candidate_rows()
    rates = model.log_rates(candidates.problem_columns(), candidates.kernel_columns(model.pool))
    log_tflops = np.log(scored.predicted[place])
    bounds = np.searchsorted(table.problem[place], np.arange(len(problems) + 1))
    parts = [slice(a, b) for a, b in pairwise(bounds.tolist())]
    best = np.array([table.tflops[place[s]].max() for s in parts]) / table.tflops[chosen.oracle]
    columns: dict[str, list[float] | npt.NDArray[np.generic]] = {}
    for tolerance in TOLERANCES:
        confidences = [
            calibration.confidence(p, log_tflops[s], None if rates is None else rates[s], tolerance)
            for p, s in zip(problems, parts, strict=True)
        ]
        columns.setdefault("regret_bound", [c.regret[1] for c in confidences])
        k = np.array([c.k or 0 for c in confidences])
        names = depth_columns(tolerance)
        columns[names[0]] = k
        columns[names[1]] = np.where(k > 0, np.minimum(k, np.diff(bounds)), np.diff(bounds))
        columns[names[2]] = np.where(k > 0, chosen.top_efficiency[np.arange(len(k)), k - 1], best)
    return pd.DataFrame(columns)


def depth_columns(tolerance: float) -> tuple[str, str, str]:
    """Return the column names of a tolerance: k, kernels measured, efficiency of the fastest of them."""
    percent = f"{100 * tolerance:g}"
    return f"k_{percent}", f"measured_{percent}", f"efficiency_{percent}"


def confidence_metrics(op: str, per_problem: pd.DataFrame) -> dict[str, Any] | None:
    """Return how the regret bounds turned out, as plain data; None where the model has no calibration.

    `coverage` is the share of problems whose loss is within its bound, with a 95 % interval that counts problems of one
    group key as one draw. `mean_bound` is the average bound, `zero_bound_rate` the share of bounds that are 0. The
    lists hold one record per tolerance (`depth`), per distance to the training data, and per bound.
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
    """Return 1 for each problem whose selection loses no more than its bound, else 0, of shape (problems,)."""
    lost = 1 - per_problem["efficiency"].to_numpy(dtype=np.float64)
    bound = per_problem["regret_bound"].to_numpy(dtype=np.float64)
    return np.where(lost <= bound + ROUNDING, 1.0, 0.0)


def _depth(per_problem: pd.DataFrame, tolerance: float) -> dict[str, float]:
    """Return cost and efficiency of measuring the k best kernels, with k chosen per problem."""
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


def _groups(
    per_problem: pd.DataFrame, name: str, column: npt.NDArray[np.generic], values: list[str] | list[float]
) -> list[Record]:
    """Return a record for each of `values` that occurs in `column`."""
    covered, e = is_covered(per_problem), per_problem["efficiency"].to_numpy(dtype=np.float64)
    k = per_problem[depth_columns(TOLERANCE)[0]].to_numpy(dtype=np.float64)
    records: list[Record] = []
    for value in values:
        own = np.asarray(column == value)
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

"""The problems of lowest efficiency, each with possible reasons."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import numpy as np
import pandas as pd

from tilewise.evaluate._evaluation import Evaluation
from tilewise.evaluate._slices import slice_names
from tilewise.metrics import Floats
from tilewise.ops import OPS

N_WORST = 10
FAR = 2.0  # log2 shape distance to the training data
OFF = 0.05  # relative error above which a prediction is called wrong
NEAR_TOP = 3  # an oracle ranked this high costs nothing where the best few kernels are measured


def noise_of(per_problem: pd.DataFrame) -> Floats:
    """Return each problem's repeat noise, of shape (problems,); the median for problems that were not repeated.

    NaN where no problem was repeated.
    """
    noise = per_problem["repeat_noise"].to_numpy(dtype=np.float64)
    typical = float(np.nanmedian(noise)) if np.isfinite(noise).any() else np.nan
    return np.where(np.isfinite(noise), noise, typical)


def within_noise(per_problem: pd.DataFrame) -> Floats:
    """Return 1 where measurements do not distinguish selection and oracle, else 0, NaN where unknown: (problems,).

    They do not where the loss, by the labels or by the runs besides the primary one, is at most the noise of
    :func:`noise_of`. The other runs are the better judge: the oracle was chosen because it did well in its own.
    """
    lost, noise = 1 - per_problem["efficiency"].to_numpy(dtype=np.float64), noise_of(per_problem)
    again = per_problem["efficiency_again"].to_numpy(dtype=np.float64)
    limit = np.nan_to_num(noise)
    same = ((lost <= limit) | (1 - again <= limit)).astype(np.float64)
    return np.where(np.isfinite(noise) | (lost == 0), same, np.nan)


def worst_problems(evaluation: Evaluation, n: int = N_WORST) -> list[dict[str, Any]]:
    """Return the `n` problems of lowest efficiency as plain data: outcome, noise, slice labels, and `reasons`."""
    table = evaluation.per_problem
    order = np.argsort(table["efficiency"].to_numpy(), kind="stable")[:n]
    same, noise = within_noise(table), noise_of(table)
    labels, problem = slice_names(evaluation.target.op, table), OPS[evaluation.target.op]
    records = table.iloc[order].to_dict("records")
    return [
        {
            "problem": problem.from_dict({name: row[name] for name in problem.column_names()}).stated(),
            "selected": row["selected"],
            "oracle": row["oracle"],
            "efficiency": row["efficiency"],
            **{n: _known(row[n]) for n in ("selected_tflops", "oracle_tflops", "predicted_tflops")},
            **{n: _known(row[n]) for n in ("oracle_predicted_tflops", "oracle_rank", "n_kernels", "nearest_octaves")},
            "noise": _known(noise[i]),
            "efficiency_again": _known(row["efficiency_again"]),
            "within_noise": None if np.isnan(same[i]) else bool(same[i]),
            "slices": {name: row[name] for name in labels},
            "reasons": _reasons(row, bool(same[i] == 1)),
        }
        for i, row in zip(order.tolist(), records, strict=True)
    ]


def _reasons(row: Mapping[Hashable, Any], within: bool) -> list[str]:
    reasons = []
    if within:
        reasons.append("within noise: repeats do not tell the two kernels apart")
    elif np.isfinite(row["efficiency_again"]):
        confirmed = 1 - row["efficiency_again"] > (1 - row["efficiency"]) / 2
        said = "confirm it" if confirmed else "find less than half of it"
        reasons.append(f"repeats {said}: {100 * row['efficiency_again']:.1f} % by the other runs")
    if np.isnan(row["oracle_predicted_tflops"]):
        reasons.append("the oracle is not in the model's pool")
    else:
        if row["oracle_rank"] < NEAR_TOP:
            reasons.append(f"near miss: the oracle is ranked {row['oracle_rank'] + 1}")
        for name, predicted, measured in (
            ("selection", row["predicted_tflops"], row["selected_tflops"]),
            ("oracle", row["oracle_predicted_tflops"], row["oracle_tflops"]),
        ):
            off = predicted / measured - 1
            if abs(off) > OFF:
                reasons.append(f"{name} {'over' if off > 0 else 'under'}-predicted by {100 * abs(off):.0f} %")
    if row["nearest_octaves"] > FAR:
        reasons.append(f"the nearest shape it learnt from is {row['nearest_octaves']:.1f} octaves away")
    return reasons


def _known(value: float) -> float | None:
    """Return None for NaN, which JSON lacks."""
    return None if np.isnan(value) else value

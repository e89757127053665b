"""How a selection is judged: one definition for tuning, cross-validation, holdout and gate.

Rows are measured (problem, kernel) pairs. A model scores every row; per problem the row with the highest score is the
selection, the row with the highest measured TFLOPS the oracle; ties go to the earlier row, so tables sort their rows
by pool order. Numpy only, vectorised over all problems at once.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]

METRICS = (
    "n_problems",
    "mean_efficiency",
    "median_efficiency",
    "p10_efficiency",
    "p90_efficiency",
    "min_efficiency",
    "top1_accuracy",
    "top5_hit_rate",
    "top3_mean_efficiency",
    "ndcg_at_1",
    "kernel_match_rate",
    "r2",
    "rmse",
)

# A selection this close to the oracle counts as right in top-1 accuracy: closer than any measurement can tell.
TIE = 1e-3
# NDCG's gain is 2 ** (GRADES * efficiency) - 1: half the efficiency is worth a sixth, not a half.
GRADES = 5


@dataclass(frozen=True)
class Selections:
    """What was selected for each problem, in the order of the problems.

    Attributes:
        selected: (problems,) row of the selection.
        oracle: (problems,) row of the fastest kernel.
        efficiency: (problems,) measured TFLOPS of the selection / of the oracle, in (0, 1].
        oracle_rank: (problems,) place of the oracle by score, 0 is first.
        top3_efficiency: (problems,) efficiency of the fastest of the three highest scores.
    """

    selected: Ints
    oracle: Ints
    efficiency: Floats
    oracle_rank: Ints
    top3_efficiency: Floats


def select(problem: Ints, measured: Floats, score: Floats) -> Selections:
    """Select by `score` within each problem.

    Args:
        problem: (rows,) problem of each row, numbered from 0 without gaps.
        measured: (rows,) TFLOPS, positive.
        score: (rows,) higher is better; any monotone scale. Minus infinity marks what cannot be selected, but may
            be the oracle; each problem needs a row that can.
    """
    by_score = np.lexsort((-score, problem))  # stable: ties keep the order of the rows
    starts = np.flatnonzero(np.diff(problem[by_score], prepend=-1))
    selected = by_score[starts]
    oracle = np.lexsort((-measured, problem))[starts]
    best = measured[oracle]
    rank = np.empty(len(problem), dtype=np.int64)
    rank[by_score] = np.arange(len(problem)) - np.repeat(starts, np.diff(starts, append=len(problem)))
    top3 = np.maximum.reduceat(np.where((rank < 3) & (score > -np.inf), measured, 0.0)[by_score], starts)
    return Selections(selected, oracle, measured[selected] / best, rank[oracle], top3 / best)


def objective(efficiency: Floats) -> float:
    """What tuning maximises: (mean + P10) / 2, so that the tail counts as much as the average."""
    return float((efficiency.mean() + np.percentile(efficiency, 10)) / 2)


def summarise(selections: Selections, measured: Floats, predicted: Floats) -> dict[str, float]:
    """The metrics of :data:`METRICS`.

    ``top1_accuracy`` counts selections within 0.1 % of the oracle, ``kernel_match_rate`` those that are the oracle
    itself; ``top5_hit_rate`` counts oracles among the five highest scores; ``r2`` and ``rmse`` (TFLOPS) compare
    `predicted` with `measured` over all rows that have a prediction.

    Args:
        selections: what was selected.
        measured: (rows,) TFLOPS.
        predicted: (rows,) TFLOPS, NaN where there is none.
    """
    e = selections.efficiency
    p10, p50, p90 = np.percentile(e, [10, 50, 90])
    known = np.isfinite(predicted)
    measured, error = measured[known], (measured - predicted)[known]
    spread = float(((measured - measured.mean()) ** 2).sum())
    return {
        "n_problems": len(e),
        "mean_efficiency": float(e.mean()),
        "median_efficiency": float(p50),
        "p10_efficiency": float(p10),
        "p90_efficiency": float(p90),
        "min_efficiency": float(e.min()),
        "top1_accuracy": float((e >= 1 - TIE).mean()),
        "top5_hit_rate": float((selections.oracle_rank < 5).mean()),
        "top3_mean_efficiency": float(selections.top3_efficiency.mean()),
        "ndcg_at_1": float(((2 ** (GRADES * e) - 1) / (2**GRADES - 1)).mean()),
        "kernel_match_rate": float((selections.selected == selections.oracle).mean()),
        "r2": 1 - float((error**2).sum()) / spread if spread > 0 else 0.0,
        "rmse": float(np.sqrt((error**2).mean())),
    }

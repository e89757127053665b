"""Metrics of selections: one definition for tuning, cross-validation, holdout and gate.

Rows are measured pairs of problem and kernel. A model scores each row. The selection of a problem is its row with the
highest score, the oracle its row with the highest measured TFLOPS. Ties go to the earlier row, so tables sort their
rows by pool order. NumPy only, vectorised over all problems.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Numbers = npt.NDArray[np.integer]  # of any width: those of large tables have 32 bits

METRICS = (
    "n_problems",
    "mean_efficiency",
    "median_efficiency",
    "p10_efficiency",
    "p90_efficiency",
    "min_efficiency",
    "top1_accuracy",
    "top3_hit_rate",
    "top5_hit_rate",
    "top10_hit_rate",
    "top3_mean_efficiency",
    "top3_p10_efficiency",
    "ndcg_at_1",
    "ndcg_at_5",
    "ndcg_at_10",
    "kernel_match_rate",
    "tflops_error",
    "r2",
    "rmse",
)

# Relative distance to the oracle below which top-1 accuracy counts a selection as right: below measurement noise.
TIE = 1e-3
# The gain of NDCG is 2 ** (GRADES * efficiency) - 1, so half the efficiency is worth a sixth, not a half.
GRADES = 5
# Number of top-ranked kernels that metrics consider: measuring more before a launch is a search, not a selection.
DEPTH = 10


@dataclass(frozen=True)
class Selections:
    """The selection of each problem, in the order of the problems.

    Attributes:
        selected: row of the selection, of shape (problems,).
        oracle: row of the fastest kernel, of shape (problems,).
        efficiency: measured TFLOPS of the selection / of the oracle, in (0, 1], of shape (problems,).
        oracle_rank: place of the oracle by score, 0 is first, of shape (problems,).
        oracle_is_candidate: whether the oracle could have been selected, of shape (problems,).
        ranked: efficiency of the kernel at each place by score, 0 beyond the last, of shape (problems, DEPTH).
        fastest: efficiency of the kernel at each place by measurement, 0 beyond the last, of shape (problems, DEPTH).
    """

    selected: Ints
    oracle: Ints
    efficiency: Floats
    oracle_rank: Ints
    oracle_is_candidate: npt.NDArray[np.bool_]
    ranked: Floats
    fastest: Floats

    @property
    def top_efficiency(self) -> Floats:
        """Efficiency of the fastest of the k highest scores, for k = 1 to DEPTH, of shape (problems, DEPTH)."""
        best: Floats = np.maximum.accumulate(self.ranked, axis=1)
        return best

    @property
    def top3_efficiency(self) -> Floats:
        """Efficiency of the fastest of the three highest scores, of shape (problems,)."""
        return self.top_efficiency[:, 2]

    def hit_rate(self, k: int) -> float:
        """Return the share of problems whose oracle is among the `k` highest scores."""
        return float(((self.oracle_rank < k) & self.oracle_is_candidate).mean())

    def ndcg(self, k: int) -> float:
        """Return the mean NDCG@k over the problems, for k from 1 to DEPTH.

        Järvelin and Kekäläinen's cumulated gain, discounted by log2(1 + place), over that of the measured order
        (doi.org/10.1145/582415.582418), with the gain 2^(5 efficiency) - 1; a missing kernel gains nothing.
        """
        discount = 1 / np.log2(np.arange(2, k + 2))
        gained, possible = ((2 ** (GRADES * e[:, :k]) - 1) @ discount for e in (self.ranked, self.fastest))
        return float(np.minimum(gained / possible, 1).mean())  # rounding could carry it above 1


def select(problem: Numbers, measured: Floats, score: Floats) -> Selections:
    """Select by `score` within each problem.

    Args:
        problem: number of each row's problem, from 0 without gaps, of shape (rows,).
        measured: TFLOPS, positive, of shape (rows,).
        score: any monotone scale, higher is better, of shape (rows,). Rows of minus infinity cannot be selected, but
            can be the oracle; each problem needs a finite score.
    """
    by_score, place = _best_first(problem, score)
    by_speed, _ = _best_first(problem, measured)
    starts = np.flatnonzero(place == 0)
    selected, oracle = by_score[starts], by_speed[starts]
    rank = np.empty(len(problem), dtype=np.int64)
    rank[by_score] = place
    best = measured[oracle]

    def top(order: Ints, counts: npt.NDArray[np.bool_]) -> Floats:
        """Return the efficiency by place in `order`, of shape (problems, DEPTH)."""
        table = np.zeros((len(starts), DEPTH))
        shown = (place < DEPTH) & counts[order]
        rows = order[shown]
        table[problem[rows], place[shown]] = measured[rows] / best[problem[rows]]
        return table

    candidate = score > -np.inf
    ranked, fastest = top(by_score, candidate), top(by_speed, np.ones_like(candidate))
    return Selections(
        selected, oracle, measured[selected] / best, rank[oracle], candidate[oracle], ranked=ranked, fastest=fastest
    )


def place_within(problem: Numbers, score: Floats) -> Ints:
    """Return each row's place by score within its problem, from 0, of shape (rows,); ties keep the rows' order."""
    order, placed = _best_first(problem, score)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = placed
    return place


def _best_first(problem: Numbers, score: Floats) -> tuple[Ints, Ints]:
    """Return the rows by problem and descending score, and the place of each of them within its problem."""
    order = np.lexsort((-score, problem))  # stable
    starts = np.flatnonzero(np.diff(problem[order], prepend=-1))
    return order, np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))


def objective(efficiency: Floats) -> float:
    """Return the objective of tuning: (mean + P10) / 2, so that the tail counts as much as the average."""
    return float((efficiency.mean() + np.percentile(efficiency, 10)) / 2)


def summarise(selections: Selections, measured: Floats, predicted: Floats | None = None) -> dict[str, float]:
    """Return the metrics of :data:`METRICS`; without predictions, those of the selections alone.

    ``top1_accuracy`` counts selections within 0.1 % of the oracle, ``kernel_match_rate`` selections that are the oracle
    itself. ``topK_hit_rate`` counts oracles among the K highest scores. ``top3_*_efficiency`` is the efficiency of the
    fastest of the three highest scores. ``tflops_error`` is the median of |predicted - measured| / measured over the
    selections. ``r2`` and ``rmse`` (TFLOPS) compare `predicted` with `measured` over all rows with a prediction.

    Args:
        selections: the selections.
        measured: TFLOPS, of shape (rows,).
        predicted: TFLOPS, NaN for rows without a prediction, of shape (rows,).
    """
    of_selections = _of_selections(selections)
    return of_selections if predicted is None else of_selections | _of_predictions(selections, measured, predicted)


def efficiency_figures(efficiency: Floats) -> dict[str, float]:
    """Return those metrics of :data:`METRICS` that follow from the selections' efficiencies alone.

    Args:
        efficiency: in (0, 1], of shape (problems,).
    """
    p10, p50, p90 = np.percentile(efficiency, [10, 50, 90])
    return {
        "n_problems": len(efficiency),
        "mean_efficiency": float(efficiency.mean()),
        "median_efficiency": float(p50),
        "p10_efficiency": float(p10),
        "p90_efficiency": float(p90),
        "min_efficiency": float(efficiency.min()),
        "top1_accuracy": float((efficiency >= 1 - TIE).mean()),
    }


def ratio_figures(ratio: Floats) -> dict[str, float]:
    """Return the geometric mean, P10 and least of positive ratios, of shape (problems,)."""
    p10 = float(np.percentile(ratio, 10))
    return {"geomean": float(np.exp(np.log(ratio).mean())), "p10": p10, "least": float(ratio.min())}


def _of_selections(selections: Selections) -> dict[str, float]:
    top3 = selections.top3_efficiency
    return {
        **efficiency_figures(selections.efficiency),
        **{f"top{k}_hit_rate": selections.hit_rate(k) for k in (3, 5, 10)},
        "top3_mean_efficiency": float(top3.mean()),
        "top3_p10_efficiency": float(np.percentile(top3, 10)),
        **{f"ndcg_at_{k}": selections.ndcg(k) for k in (1, 5, 10)},
        "kernel_match_rate": float((selections.selected == selections.oracle).mean()),
    }


def _of_predictions(selections: Selections, measured: Floats, predicted: Floats) -> dict[str, float]:
    selected = selections.selected
    off = np.abs(predicted[selected] / measured[selected] - 1)
    known = np.isfinite(predicted)
    measured, error = measured[known], (measured - predicted)[known]
    spread = float(((measured - measured.mean()) ** 2).sum())
    return {
        "tflops_error": float(np.median(off)),
        "r2": 1 - float((error**2).sum()) / spread if spread > 0 else 0.0,
        "rmse": float(np.sqrt((error**2).mean())),
    }


def regret_curve(selections: Selections) -> list[dict[str, float]]:
    """Return the efficiency of the best of the top k, measured, for k = 1 to :data:`DEPTH`.

    Returns:
        One dict per k: `k`, `mean_efficiency`, `p10_efficiency`, and `hit_rate` (the oracle is among the top k).
    """
    top = selections.top_efficiency
    return [
        {
            "k": k,
            "mean_efficiency": float(top[:, k - 1].mean()),
            "p10_efficiency": float(np.percentile(top[:, k - 1], 10)),
            "hit_rate": selections.hit_rate(k),
        }
        for k in range(1, DEPTH + 1)
    ]


def error_figures(predicted: Floats, measured: Floats) -> dict[str, float]:
    """Return the errors of predictions of a positive quantity.

    Args:
        predicted: positive, of shape (rows,).
        measured: positive, of shape (rows,).

    Returns:
        ``n`` rows, ``median_error`` and ``p90_error`` (relative, as a fraction of the measurement), and ``r2`` of the
        logarithms (0 where all measurements are equal).
    """
    relative = np.abs(predicted / measured - 1)
    log, error = np.log(measured), np.log(predicted / measured)
    spread = float(((log - log.mean()) ** 2).sum())
    median, p90 = np.percentile(relative, [50, 90])
    r2 = 1 - float((error**2).sum()) / spread if spread else 0.0
    return {"n": float(len(measured)), "median_error": float(median), "p90_error": float(p90), "r2": r2}

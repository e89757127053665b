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
    "top3_hit_rate",
    "top5_hit_rate",
    "top10_hit_rate",
    "top3_mean_efficiency",
    "top3_p10_efficiency",
    "ndcg_at_1",
    "ndcg_at_5",
    "ndcg_at_10",
    "kernel_match_rate",
    "r2",
    "rmse",
)

# A selection this close to the oracle counts as right in top-1 accuracy: closer than any measurement can tell.
TIE = 1e-3
# NDCG's gain is 2 ** (GRADES * efficiency) - 1: half the efficiency is worth a sixth, not a half.
GRADES = 5
# How far down a ranking is looked: measuring more than ten kernels before launching one is a search, not a selection.
DEPTH = 10


@dataclass(frozen=True)
class Selections:
    """What was selected for each problem, in the order of the problems.

    Attributes:
        selected: (problems,) row of the selection.
        oracle: (problems,) row of the fastest kernel.
        efficiency: (problems,) measured TFLOPS of the selection / of the oracle, in (0, 1].
        oracle_rank: (problems,) place of the oracle by score, 0 is first.
        oracle_is_candidate: (problems,) whether the oracle could have been selected.
        ranked: (problems, DEPTH) efficiency of the kernel in each place by score, 0 where there are no more.
        fastest: (problems, DEPTH) efficiency of the kernel in each place by measurement, 0 where there are no more.
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
        """(problems, DEPTH) efficiency of the fastest of the k highest scores, for k = 1 to DEPTH."""
        best: Floats = np.maximum.accumulate(self.ranked, axis=1)
        return best

    @property
    def top3_efficiency(self) -> Floats:
        """(problems,) efficiency of the fastest of the three highest scores."""
        return self.top_efficiency[:, 2]

    def hit_rate(self, k: int) -> float:
        """Share of problems whose oracle is among the `k` highest scores."""
        return float(((self.oracle_rank < k) & self.oracle_is_candidate).mean())

    def ndcg(self, k: int) -> float:
        """NDCG@k, mean over the problems, for k = 1 to DEPTH.

        Järvelin and Kekäläinen's cumulated gain, discounted by log2(1 + place), over that of the measured order
        (doi.org/10.1145/582415.582418), with the gain 2^(5 efficiency) - 1; a missing kernel gains nothing.
        """
        discount = 1 / np.log2(np.arange(2, k + 2))
        gained, possible = ((2 ** (GRADES * e[:, :k]) - 1) @ discount for e in (self.ranked, self.fastest))
        return float(np.minimum(gained / possible, 1).mean())  # rounding could carry it above 1


def select(problem: Ints, measured: Floats, score: Floats) -> Selections:
    """Select by `score` within each problem.

    Args:
        problem: (rows,) problem of each row, numbered from 0 without gaps.
        measured: (rows,) TFLOPS, positive.
        score: (rows,) higher is better; any monotone scale. Minus infinity marks what cannot be selected, but may
            be the oracle; each problem needs a row that can.
    """
    by_score, place = _best_first(problem, score)
    by_speed, _ = _best_first(problem, measured)
    starts = np.flatnonzero(place == 0)
    selected, oracle = by_score[starts], by_speed[starts]
    rank = np.empty(len(problem), dtype=np.int64)
    rank[by_score] = place
    best = measured[oracle]

    def top(order: Ints, counts: npt.NDArray[np.bool_]) -> Floats:
        """(problems, DEPTH) efficiency by place in `order`."""
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


def place_within(problem: Ints, score: Floats) -> Ints:
    """(rows,) each row's place by score within its problem, 0 is first; ties keep the order of the rows."""
    order, placed = _best_first(problem, score)
    place = np.empty(len(order), dtype=np.int64)
    place[order] = placed
    return place


def _best_first(problem: Ints, score: Floats) -> tuple[Ints, Ints]:
    """The rows, problem by problem and the best of each first, and the place that each of these has in its problem."""
    order = np.lexsort((-score, problem))  # stable
    starts = np.flatnonzero(np.diff(problem[order], prepend=-1))
    return order, np.arange(len(order)) - np.repeat(starts, np.diff(starts, append=len(order)))


def objective(efficiency: Floats) -> float:
    """What tuning maximises: (mean + P10) / 2, so that the tail counts as much as the average."""
    return float((efficiency.mean() + np.percentile(efficiency, 10)) / 2)


def summarise(selections: Selections, measured: Floats, predicted: Floats) -> dict[str, float]:
    """The metrics of :data:`METRICS`.

    ``top1_accuracy`` counts selections within 0.1 % of the oracle, ``kernel_match_rate`` those that are the oracle
    itself; ``topK_hit_rate`` counts oracles among the K highest scores, ``top3_*_efficiency`` is that of the fastest of
    the three highest scores; ``r2`` and ``rmse`` (TFLOPS) compare `predicted` with `measured` over all rows that have a
    prediction.

    Args:
        selections: what was selected.
        measured: (rows,) TFLOPS.
        predicted: (rows,) TFLOPS, NaN where there is none.
    """
    e, top3 = selections.efficiency, selections.top3_efficiency
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
        **{f"top{k}_hit_rate": selections.hit_rate(k) for k in (3, 5, 10)},
        "top3_mean_efficiency": float(top3.mean()),
        "top3_p10_efficiency": float(np.percentile(top3, 10)),
        **{f"ndcg_at_{k}": selections.ndcg(k) for k in (1, 5, 10)},
        "kernel_match_rate": float((selections.selected == selections.oracle).mean()),
        "r2": 1 - float((error**2).sum()) / spread if spread > 0 else 0.0,
        "rmse": float(np.sqrt((error**2).mean())),
    }


def regret_curve(selections: Selections) -> list[dict[str, float]]:
    """What measuring the best few buys: "the best of the top k, measured", for k = 1 to :data:`DEPTH`.

    Returns:
        One dict a k: `k`, `mean_efficiency`, `p10_efficiency`, and `hit_rate` (the oracle is among them).
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

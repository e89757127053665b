"""Selections are judged by hand-typed tables; the formulas are the contract of every efficiency that is printed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilewise.metrics import (
    DEPTH,
    METRICS,
    TIE,
    error_figures,
    objective,
    place_within,
    ratio_figures,
    regret_curve,
    select,
    summarise,
)

# two problems: 3 kernels and 2 kernels
PROBLEM = np.array([0, 0, 0, 1, 1])
MEASURED = np.array([50.0, 100.0, 80.0, 20.0, 10.0])


def test_efficiency_is_measured_selection_over_measured_oracle() -> None:
    chosen = select(PROBLEM, MEASURED, np.array([0.1, 0.2, 0.9, 0.5, 0.4]))
    assert chosen.selected.tolist() == [2, 3]
    assert chosen.oracle.tolist() == [1, 3]
    assert chosen.efficiency.tolist() == [0.8, 1.0]
    assert chosen.oracle_rank.tolist() == [1, 0]
    assert chosen.top3_efficiency.tolist() == [1.0, 1.0]


def test_figures_of_ratios() -> None:
    ratio = np.array([0.5, *[1.0] * 9, 2.0])
    assert ratio_figures(ratio) == pytest.approx({"geomean": 1.0, "p10": 1.0, "least": 0.5})


def test_ties_go_to_the_earlier_row() -> None:
    chosen = select(PROBLEM, np.ones(5), np.zeros(5))
    assert chosen.selected.tolist() == [0, 3]
    assert chosen.oracle.tolist() == [0, 3]


def test_rows_need_not_be_sorted_by_problem() -> None:
    order = np.array([4, 1, 3, 0, 2])
    chosen = select(PROBLEM[order], MEASURED[order], MEASURED[order])
    assert chosen.efficiency.tolist() == [1.0, 1.0]


def test_what_cannot_be_selected_may_be_the_oracle() -> None:
    chosen = select(PROBLEM, MEASURED, np.array([0.1, -np.inf, 0.9, 0.5, -np.inf]))
    assert chosen.selected.tolist() == [2, 3]
    assert chosen.oracle.tolist() == [1, 3]
    assert chosen.top3_efficiency.tolist() == [0.8, 1.0]
    assert chosen.oracle_is_candidate.tolist() == [False, True]
    assert chosen.hit_rate(10) == 0.5  # it is ranked behind all candidates, which is no hit


def test_regret_is_that_of_the_best_few() -> None:
    chosen = select(PROBLEM, MEASURED, np.array([0.9, 0.1, 0.5, 0.4, 0.5]))
    curve = regret_curve(chosen)
    assert [r["k"] for r in curve] == list(range(1, DEPTH + 1))
    assert [r["mean_efficiency"] for r in curve[:4]] == [0.5, pytest.approx(0.9), 1.0, 1.0]
    assert [r["p10_efficiency"] for r in curve[:3]] == [0.5, pytest.approx(0.82), 1.0]
    assert [r["hit_rate"] for r in curve[:3]] == [0.0, 0.5, 1.0]


def test_ndcg_by_hand() -> None:
    # gains 2^(5 e) - 1 of efficiencies 0.8, 0.5, 1 in the order of the scores, and in the best order
    chosen = select(np.zeros(3, int), MEASURED[:3], np.array([0.5, 0.1, 0.9]))
    g5, g8, g10 = (2 ** (5 * e) - 1 for e in (0.5, 0.8, 1.0))
    log3 = np.log2(3)
    assert chosen.ndcg(1) == pytest.approx(g8 / g10)
    assert chosen.ndcg(2) == pytest.approx((g8 + g5 / log3) / (g10 + g8 / log3))
    assert chosen.ndcg(10) == pytest.approx((g8 + g5 / log3 + g10 / 2) / (g10 + g8 / log3 + g5 / 2))


def test_a_perfect_ranking_has_ndcg_1_and_no_regret() -> None:
    chosen = select(PROBLEM, MEASURED, MEASURED)
    assert {chosen.ndcg(k) for k in range(1, DEPTH + 1)} == {1.0}
    assert all(r["mean_efficiency"] == r["hit_rate"] == 1 for r in regret_curve(chosen))


def test_summary_has_every_metric_in_its_range() -> None:
    predicted = np.array([50.0, 60.0, 80.0, 20.0, np.nan])
    metrics = summarise(select(PROBLEM, MEASURED, np.array([0.1, 0.2, 0.9, 0.5, 0.4])), MEASURED, predicted)
    assert tuple(metrics) == METRICS
    assert metrics["n_problems"] == 2
    assert metrics["mean_efficiency"] == pytest.approx(0.9)
    assert metrics["min_efficiency"] == pytest.approx(0.8)
    assert metrics["kernel_match_rate"] == metrics["top1_accuracy"] == 0.5
    assert metrics["top3_hit_rate"] == metrics["top5_hit_rate"] == metrics["top10_hit_rate"] == 1
    assert metrics["top3_mean_efficiency"] == metrics["top3_p10_efficiency"] == 1
    assert metrics["ndcg_at_1"] == pytest.approx((15 / 31 + 1) / 2)
    assert metrics["rmse"] == pytest.approx(20.0)  # over the four rows that have a prediction
    assert metrics["r2"] == pytest.approx(1 - 1600 / np.var([50, 100, 80, 20]) / 4)


def test_a_near_tie_is_right_but_no_match() -> None:
    metrics = summarise(
        select(np.zeros(2, int), np.array([99.95, 100.0]), np.array([1.0, 0.0])), np.ones(2), np.ones(2)
    )
    assert (metrics["top1_accuracy"], metrics["kernel_match_rate"]) == (1, 0)


def test_constant_measurements_have_no_r2() -> None:
    rows = np.array([5.0, 5.0])
    assert summarise(select(np.zeros(2, int), rows, rows), rows, rows)["r2"] == 0


def test_the_objective_counts_the_tail_as_much_as_the_mean() -> None:
    assert objective(np.array([1.0] * 8 + [0.5] * 2)) == pytest.approx((0.9 + 0.5) / 2)


# Eleven problems, so that P10, P50 and P90 are the 2nd, 6th and 10th smallest efficiency: every figure can be read off.
# The selection is the first kernel. ORACLE_RANKS is the place of the oracle among twelve kernels.
EFFICIENCIES = [1.0, 0.99905, 0.99895, 0.96, 0.92, 0.88, 0.80, 0.70, 0.60, 0.55, 0.40]
ORACLE_RANKS = [0, 1, 2, 2, 3, 4, 5, 9, 10, 11, 11]


def eleven_problems() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the problem, TFLOPS and score of each row."""
    measured = np.full((11, 12), 10.0)
    measured[:, 0] = 100 * np.array(EFFICIENCIES)
    measured[np.arange(11), ORACLE_RANKS] = 100
    return np.repeat(np.arange(11), 12), measured.ravel(), np.tile(-np.arange(12.0), 11)


def test_every_share_and_percentile_by_hand() -> None:
    problem, measured, score = eleven_problems()
    metrics = summarise(select(problem, measured, score), measured, measured)
    assert {name: metrics[name] for name in metrics if "ndcg" not in name} == pytest.approx(
        {
            "n_problems": 11,
            "mean_efficiency": 8.808 / 11,
            "median_efficiency": 0.88,
            "p10_efficiency": 0.55,
            "p90_efficiency": 0.99905,
            "min_efficiency": 0.40,
            "top1_accuracy": 2 / 11,  # within 0.1 %: 1.0 and 0.99905, but not 0.99895
            "top3_hit_rate": 4 / 11,
            "top5_hit_rate": 6 / 11,
            "top10_hit_rate": 8 / 11,
            "top3_mean_efficiency": 8.85 / 11,
            "top3_p10_efficiency": 0.55,
            "kernel_match_rate": 1 / 11,
            "tflops_error": 0,
            "r2": 1,
            "rmse": 0,
        },
        rel=1e-12,
    )


def test_the_regret_curve_by_hand() -> None:
    problem, measured, score = eleven_problems()
    curve = regret_curve(select(problem, measured, score))
    assert [row["k"] for row in curve] == [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert [row["hit_rate"] for row in curve] == pytest.approx([n / 11 for n in (1, 2, 4, 5, 6, 7, 7, 7, 7, 8)])
    # Measuring k kernels turns the efficiency of each hit into 1.
    means = [8.808, 8.80895, 8.85, 8.93, 9.05, 9.25, 9.25, 9.25, 9.25, 9.55]
    assert [row["mean_efficiency"] for row in curve] == pytest.approx([m / 11 for m in means], rel=1e-12)
    assert [row["p10_efficiency"] for row in curve] == pytest.approx([0.55] * 10, rel=1e-12)


def test_r2_and_rmse_by_hand() -> None:
    measured, predicted = np.array([2.0, 4.0, 6.0, 8.0, 99.0]), np.array([3.0, 4.0, 5.0, 10.0, np.nan])
    score = np.array([0.0, 1.0, 2.0, 3.0, -1.0])  # the row without a prediction is no candidate
    metrics = summarise(select(np.zeros(5, int), measured, score), measured, predicted)
    assert metrics["r2"] == pytest.approx(1 - 6 / 20, rel=1e-12)  # squared errors 1, 0, 1, 4; deviations 9, 1, 1, 9
    assert metrics["rmse"] == pytest.approx(1.5**0.5, rel=1e-12)


def test_the_tflops_error_is_the_median_over_the_selections() -> None:
    problem, measured = np.repeat(np.arange(3), 2), np.array([10.0, 5.0, 20.0, 5.0, 40.0, 5.0])
    predicted = np.array([9.0, 500.0, 24.0, 500.0, 80.0, 500.0])  # off by 10, 20 and 100 %
    assert summarise(select(problem, measured, measured), measured, predicted)["tflops_error"] == pytest.approx(0.2)


def test_without_predictions_only_the_selections_are_summarised() -> None:
    chosen = select(PROBLEM, MEASURED, MEASURED)
    whole, without = summarise(chosen, MEASURED, MEASURED), summarise(chosen, MEASURED)
    assert set(whole) - set(without) == {"tflops_error", "r2", "rmse"}
    assert without == {name: whole[name] for name in without}


def test_ndcg_at_1_5_and_10_by_hand() -> None:
    # gains 1, 1, 1, 1, 1, 31 in the order of the scores; discounts 1, 0.6309, 0.5, 0.4307, 0.3869, 0.3562
    measured = np.array([20.0, 20.0, 20.0, 20.0, 20.0, 100.0])
    metrics = summarise(select(np.zeros(6, int), measured, -np.arange(6.0)), measured, measured)
    figures = [metrics[f"ndcg_at_{k}"] for k in (1, 5, 10)]
    assert figures == pytest.approx([1 / 31, 2.948459 / 32.948459, 13.990880 / 33.304666], rel=1e-6)


def test_the_objective_by_hand() -> None:
    """Of 0, 0.1, ..., 1 the mean is 0.5 and P10 is 0.1."""
    assert objective(np.arange(11) / 10) == pytest.approx(0.3, rel=1e-12)


@given(st.lists(st.tuples(st.integers(0, 4), st.floats(0.1, 1e3), st.floats(-5, 5)), min_size=1, max_size=60))
def test_selection_agrees_with_a_plain_loop(rows: list[tuple[int, float, float]]) -> None:
    numbers = {p: i for i, p in enumerate(dict.fromkeys(p for p, _, _ in rows))}
    problem = np.array([numbers[p] for p, _, _ in rows])
    measured, score = np.array([m for _, m, _ in rows]), np.array([s for _, _, s in rows])
    chosen = select(problem, measured, score)
    for p in numbers.values():
        mine = np.flatnonzero(problem == p)
        best = mine[np.argsort(-score[mine], kind="stable")]
        assert chosen.selected[p] == best[0]
        assert chosen.efficiency[p] == measured[best[0]] / measured[mine].max()
        assert chosen.top3_efficiency[p] == measured[best[:3]].max() / measured[mine].max()
        assert best[chosen.oracle_rank[p]] == chosen.oracle[p]
        for k in range(1, DEPTH + 1):
            assert chosen.top_efficiency[p, k - 1] == measured[best[:k]].max() / measured[mine].max()
    for k in range(1, DEPTH + 1):
        assert 0 < chosen.ndcg(k) <= 1


def test_a_kernel_within_a_tie_of_the_oracle_is_a_hit() -> None:
    problem, score = np.array([0, 0, 1, 1]), np.array([1.0, 0.0, 1.0, 0.0])
    measured = np.array([1 - TIE, 1.0, 1 - 1.01 * TIE, 1.0])
    assert summarise(select(problem, measured, score), measured)["top1_accuracy"] == 0.5


def test_errors_of_small_figures_count_as_those_of_large_ones() -> None:
    """R2 does not depend on the unit, also where the figures spread over much less than 1."""
    measured, predicted = np.array([1.0, 2.0, 4.0, 8.0]), np.array([1.5, 2.0, 3.0, 9.0])
    problem = np.zeros(4, int)
    figures = [summarise(select(problem, s * measured, predicted), s * measured, s * predicted) for s in (1.0, 1e-3)]
    assert figures[0]["r2"] == pytest.approx(1 - 2.25 / 28.75)
    assert figures[1]["r2"] == pytest.approx(figures[0]["r2"])
    assert figures[0]["rmse"] == pytest.approx(0.75)


def test_places_count_within_each_problem() -> None:
    problem, score = np.array([2, 0, 2, 1, 0, 2]), np.array([0.1, 0.5, 0.7, 0.0, 0.5, 0.7])
    assert place_within(problem, score).tolist() == [2, 0, 0, 0, 1, 1]
    assert place_within(problem[:0], score[:0]).tolist() == []


def test_errors_of_predictions_by_hand() -> None:
    measured = np.exp([0.0, 1.0, 2.0, 3.0])
    figures = error_figures(measured * [1.1, 0.8, 1.0, 1.5], measured)
    assert figures["n"] == 4.0
    assert figures["median_error"] == pytest.approx(0.15)
    assert figures["p90_error"] == pytest.approx(0.2 + 0.7 * 0.3)
    lost = np.log(1.1) ** 2 + np.log(0.8) ** 2 + np.log(1.5) ** 2
    assert figures["r2"] == pytest.approx(1 - lost / 5.0)


def test_equal_measurements_have_nothing_to_explain() -> None:
    assert error_figures(np.array([1.0, 3.0]), np.array([2.0, 2.0]))["r2"] == 0.0
    assert error_figures(np.array([1.0, 1.1]), np.array([1.0, 1.1]))["r2"] == 1.0

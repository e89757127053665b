"""Regret bounds are checked by measurements: coverage, depth and distance, by hand and with a small model."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from calibrations import one_bin
from small_model import altered
from tilewise.data import group_keys
from tilewise.evaluate import evaluate, report_summary, write_plots
from tilewise.evaluate._confidence_coverage import TOLERANCES, confidence_metrics, depth_columns
from tilewise.metrics import DEPTH
from tilewise.model import COVARIATES, TrainedModel
from tilewise.ops import GroupedConvProblem


@pytest.fixture(scope="module")
def trusting(model: TrainedModel, frame: pd.DataFrame) -> TrainedModel:
    """Return a model that knows 30 shapes and bounds the loss near them by 10 %, with three kernels by 1 %."""
    keys = np.unique(group_keys("grouped_conv", frame), axis=0)
    losses = [np.full(10, 0.1 if k < 2 else 0.01 if k < 5 else 0.001) for k in range(DEPTH)]
    return altered(model, calibration=one_bin(keys[:30], 4.0, 50, losses))


def test_columns_follow_the_model(trusting: TrainedModel, frame: pd.DataFrame) -> None:
    found = evaluate(trusting, frame).per_problem
    far = found["nearest_octaves"] > 4
    assert 0 < far.sum() < len(found)
    assert (found["nearest_octaves"] == 0).sum() >= 30
    assert found["regret_bound"].tolist() == np.where(far, 1.0, 0.1).tolist()
    for tolerance, k in zip(TOLERANCES, (3, 3, 6), strict=True):
        names = depth_columns(tolerance)
        assert found[names[0]].tolist() == np.where(far, 0, k).tolist()
        assert found[names[1]].tolist() == np.where(far, found["n_kernels"], found["n_kernels"].clip(upper=k)).tolist()
        assert (found[names[2]] >= found["efficiency"]).all()
        assert (found.loc[far, names[2]] == 1).all()  # the oracle is in the pool, and all are measured
        reached = found.loc[~far & (found["oracle_rank"] < k), names[2]]
        assert (reached == 1).all()


def test_it_says_what_the_dispatcher_says(trusting: TrainedModel, frame: pd.DataFrame) -> None:
    """With all supported kernels measured, the evaluation and :meth:`TrainedModel.confidence` see the same."""
    calibration = trusting.calibration
    assert calibration is not None
    of_margin = np.eye(len(COVARIATES))[0]
    calibration = dataclasses.replace(
        calibration,
        weights=of_margin,
        edges=np.array([0.05]),
        counts=np.array([50, 50]),
        losses=[calibration.losses[0], [np.ones(1)] * DEPTH],
    )
    model = altered(trusting, calibration=calibration)
    seen = set()
    for row in evaluate(model, frame).per_problem.to_dict("records"):
        problem = GroupedConvProblem(**{n: row[n] for n in GroupedConvProblem.column_names()})
        if model.supported(problem).sum() == row["n_kernels"]:
            trust = model.confidence(problem, model.score(problem))
            assert trust is not None
            assert (trust.regret[1], trust.k or 0) == (row["regret_bound"], row["k_3"])
            assert trust.shape_distance == row["nearest_octaves"]
            seen.add(trust.regret[1])
    assert seen == {0.1, 0.0, 1.0}  # both bins, and far away


def per_problem(efficiency: list[float], bound: list[float], k: list[int]) -> pd.DataFrame:
    """Judged matrix products of four shapes, 100 kernels each; the k best lose a tenth of the first one's loss."""
    e = np.array(efficiency)
    table = pd.DataFrame(
        {
            "M": np.arange(len(e)) // 2, "N": 64, "K": 64, "layout": "rcr", "efficiency": e, "regret_bound": bound,
            "efficiency_again": [np.nan, *e[1:]], "distance": ["0", "1-2"] * (len(e) // 2),
        }
    )  # fmt: skip
    for tolerance in TOLERANCES:
        names = depth_columns(tolerance)
        left = np.where(np.array(k) > 0, 1 - (1 - e) / 10, 1.0)
        table[list(names)] = np.column_stack([k, np.where(np.array(k) > 0, k, 100), left])
    return table


def test_metrics_by_hand() -> None:
    table = per_problem([1.0, 0.9, 0.8, 0.99], [0.0, 0.1, 0.1, 0.0], [1, 2, 0, 3])
    found = confidence_metrics("gemm", table)
    assert found is not None
    assert found["coverage"] == 0.5
    assert (found["n_shapes"], found["n_again"], found["coverage_again"]) == (2, 3, pytest.approx(1 / 3))
    assert (found["mean_bound"], found["zero_bound_rate"]) == (0.05, 0.5)
    # both problems of one shape are covered, none of the other's: two draws, not four
    assert found["coverage_low"] == pytest.approx(max(0.5 - 1.96 * np.sqrt(2) / 4, 0))
    depth = found["depth"][0]
    assert (depth["mean_k"], depth["measure_rate"], depth["mean_measured"]) == (2, 0.25, 26.5)
    assert depth["within_rate"] == 1.0
    assert depth["mean_efficiency"] == pytest.approx((1 + 0.99 + 1 + 0.999) / 4)
    near, mid = found["by_distance"]
    assert (near["distance"], near["n_problems"], near["coverage"], near["mean_k"]) == ("0", 2, 0.5, 1.0)
    assert mid["mean_efficiency"] == pytest.approx(0.945)
    assert [g["bound"] for g in found["by_bound"]] == [0.0, 0.1]


def test_a_model_without_a_calibration_says_nothing(model: TrainedModel, frame: pd.DataFrame) -> None:
    evaluation = evaluate(model, frame)
    assert "regret_bound" not in evaluation.per_problem
    assert report_summary(evaluation, {})["trust"] is None


@pytest.mark.long
def test_the_report_holds_it(trusting: TrainedModel, frame: pd.DataFrame, tmp_path: Path) -> None:
    evaluation = evaluate(trusting, frame)
    trust = report_summary(evaluation, {})["trust"]
    assert 0 <= trust["coverage_low"] <= trust["coverage"] <= trust["coverage_high"] <= 1
    assert sum(g["n_problems"] for g in trust["by_distance"]) == len(evaluation.per_problem)
    names = {p.name for p in write_plots(tmp_path, evaluation)}
    assert {"distance.png", "trust.png"} <= names
    assert all((tmp_path / n).stat().st_size > 5000 for n in ("distance.png", "trust.png"))

"""Reports hold the files that scripts and DVC read; equal evaluations give equal bytes."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest

from alone import run_alone
from tilewise.evaluate import evaluate, write_evaluation_report
from tilewise.evaluate._evaluation_report import (
    METRICS_FILE,
    PLOTS_FOLDER,
    PREDICTIONS_FILE,
    SUMMARY_FILE,
)
from tilewise.evaluate._slices import SLICES
from tilewise.metrics import METRICS
from tilewise.model import TrainedModel
from tilewise.ops import OPS


@pytest.mark.long
def test_metrics_stand_beside_what_they_depend_on(model: TrainedModel, frame: pd.DataFrame, tmp_path: Path) -> None:
    evaluation = evaluate(model, frame)
    write_evaluation_report(tmp_path / "r", evaluation, {**evaluation.metrics, "folds": [], "split_rule": "x"})
    written = json.loads((tmp_path / "r" / METRICS_FILE).read_text())
    assert written["target"] == model.target.name
    assert written["pool_size"] == len(model.pool)
    assert written["split_rule"] == evaluation.split_rule
    assert written["noise_ceiling"]["n_problems"] == 8
    assert set(written["cv"]) == set(METRICS)
    assert [r["k"] for r in written["best_of_top_k"]] == list(range(1, 11))
    assert {"size", "filter", "pipeline"} <= {s["slice"] for s in written["slices"]}
    assert sum(s["n_problems"] for s in written["slices"] if s["slice"] == "size") == written["holdout"]["n_problems"]
    assert 0 < written["holdout"]["within_noise_rate"] <= 1
    assert set(METRICS) < set(written["holdout"])
    assert 0 <= written["holdout"]["min_efficiency"] <= written["holdout"]["mean_efficiency"] <= 1


@pytest.mark.long
def test_predictions_have_a_row_a_problem(model: TrainedModel, frame: pd.DataFrame, tmp_path: Path) -> None:
    evaluation = evaluate(model, frame)
    write_evaluation_report(tmp_path, evaluation, {})
    predictions = pd.read_parquet(tmp_path / PREDICTIONS_FILE)
    pd.testing.assert_frame_equal(predictions, evaluation.per_problem.drop(columns="layout"))  # all the default
    wanted = {*OPS["grouped_conv"].column_names()} - {"layout"} | {
        "oracle",
        "selected",
        "efficiency",
        "origin",
        *SLICES,
    }
    assert wanted <= set(predictions.columns)


@pytest.mark.long
def test_equal_evaluations_write_equal_bytes(model: TrainedModel, frame: pd.DataFrame, tmp_path: Path) -> None:
    for folder in ("a", "b"):
        write_evaluation_report(tmp_path / folder, evaluate(model, frame), {})
    for name in (METRICS_FILE, PREDICTIONS_FILE, SUMMARY_FILE):
        assert (tmp_path / "a" / name).read_bytes() == (tmp_path / "b" / name).read_bytes()


@pytest.mark.long
def test_an_unknown_ceiling_is_null(model: TrainedModel, frame: pd.DataFrame, tmp_path: Path) -> None:
    write_evaluation_report(tmp_path, evaluate(model, frame[frame["run_id"] == "synthetic-1"]), {})
    written = json.loads((tmp_path / METRICS_FILE).read_text(), parse_constant=pytest.fail)  # NaN is no JSON
    assert written["noise_ceiling"] is written["holdout"]["within_noise_rate"] is None


@pytest.mark.long
def test_the_plots_are_drawn(model: TrainedModel, frame: pd.DataFrame, tmp_path: Path) -> None:
    write_evaluation_report(tmp_path, evaluate(model, frame), {})
    plots = {p.name for p in (tmp_path / PLOTS_FOLDER).iterdir()}
    assert plots == {f"{n}.png" for n in ("efficiency", "predictions", "slices", "regret")}


@pytest.mark.long
def test_dvc_gets_a_few_columns(model: TrainedModel, frame: pd.DataFrame, tmp_path: Path) -> None:
    evaluation = evaluate(model, frame)
    write_evaluation_report(tmp_path, evaluation, evaluation.metrics)
    written = json.loads((tmp_path / SUMMARY_FILE).read_text())
    assert set(written["holdout"]) == set(written["cv"]) == {"mean", "median", "p10", "worst", "top3"}
    assert written["holdout"]["p10"] == pytest.approx(evaluation.metrics["p10_efficiency"], abs=1e-5)
    assert evaluation.noise_ceiling is not None
    assert written["ceiling"] == pytest.approx(evaluation.noise_ceiling.mean_efficiency, abs=1e-5)


@pytest.mark.long
def test_reports_and_promotions_do_without_the_training_library() -> None:
    run_alone("""
        import sys
        from tilewise.evaluate import evaluate, write_evaluation_report
        from tilewise.registry.promotion import promote
        assert not {"lightgbm", "optuna", "sklearn"} & set(sys.modules)
    """)

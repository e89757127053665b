"""The report of an evaluation: metrics, predictions, and the few figures and plots that DVC shows.

Equal input gives equal bytes.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tilewise.data import parquet_bytes, without_implied
from tilewise.evaluate._confidence_coverage import confidence_metrics
from tilewise.evaluate._evaluation import Evaluation
from tilewise.evaluate._slices import slice_names, sliced_metrics
from tilewise.evaluate._worst import within_noise, worst_problems
from tilewise.evaluate.plots import (
    plot_bounds,
    plot_distance,
    plot_efficiency,
    plot_predictions,
    plot_regret,
    plot_slices,
)
from tilewise.files import write_bytes, write_text
from tilewise.metrics import METRICS

METRICS_FILE, PREDICTIONS_FILE, SUMMARY_FILE = "metrics.json", "predictions.parquet", "summary.json"
PLOTS_FOLDER = "plots"
# The columns of DVC's tables, by their names in METRICS.
_SUMMARY = {
    "mean": "mean_efficiency",
    "median": "median_efficiency",
    "p10": "p10_efficiency",
    "worst": "min_efficiency",
    "top3": "top3_mean_efficiency",
}


def write_evaluation_report(folder: Path, evaluation: Evaluation, cv_metrics: Mapping[str, Any]) -> None:
    """Write the three files and the plots.

    Args:
        folder: ``reports/<target>``; other files in it stay.
        evaluation: the holdout evaluation.
        cv_metrics: the model's out-of-fold metrics.

    Raises:
        OSError: the folder cannot be written.
    """
    metrics = json.dumps(report_summary(evaluation, cv_metrics), indent=1) + "\n"
    predictions = without_implied(evaluation.per_problem, evaluation.target.op)
    write_bytes(folder / PREDICTIONS_FILE, parquet_bytes(predictions))
    write_text(folder / METRICS_FILE, metrics)
    write_text(folder / SUMMARY_FILE, json.dumps(dvc_summary(evaluation, cv_metrics), indent=1) + "\n")
    write_plots(folder / PLOTS_FOLDER, evaluation)


def write_plots(folder: Path, evaluation: Evaluation) -> list[Path]:
    """Draw efficiencies, predictions, slices, and the efficiency of measuring the best few kernels.

    Raises:
        OSError: the folder cannot be written.
    """
    per_problem = evaluation.per_problem
    slices = sliced_metrics(per_problem, slice_names(evaluation.target.op, per_problem))
    confidence = confidence_metrics(evaluation.target.op, per_problem)
    return [
        plot_efficiency({"selected": per_problem["efficiency"].to_numpy()}, folder / "efficiency.png"),
        plot_predictions(evaluation.measured, evaluation.predicted, folder / "predictions.png"),
        plot_slices(slices, folder / "slices.png"),
        plot_regret(evaluation.regret, evaluation.noise_ceiling, folder / "regret.png"),
        *(
            [plot_distance(per_problem, folder / "distance.png")]
            if per_problem["nearest_octaves"].notna().any()
            else []
        ),
        *([plot_bounds(confidence, folder / "trust.png")] if confidence else []),
    ]


def dvc_summary(evaluation: Evaluation, cv_metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``summary.json`` as plain data: the efficiencies that DVC's tables show, rounded to 1e-5."""
    ceiling = evaluation.noise_ceiling

    def chosen(metrics: Mapping[str, Any]) -> dict[str, float]:
        return {short: round(float(metrics[name]), 5) for short, name in _SUMMARY.items() if name in metrics}

    return {
        "holdout": chosen(evaluation.metrics),
        "cv": chosen(cv_metrics),
        **({"ceiling": round(ceiling.mean_efficiency, 5)} if ceiling else {}),
    }


def report_summary(evaluation: Evaluation, cv_metrics: Mapping[str, Any]) -> dict[str, Any]:
    """Return ``metrics.json`` as plain data: figures together with the context that they need.

    Repeated records are lists, which DVC's tables of metrics leave out.
    """
    ceiling, per_problem = evaluation.noise_ceiling, evaluation.per_problem
    same = within_noise(per_problem)
    return {
        "target": evaluation.target.name,
        "pool_size": evaluation.pool_size,
        "split_rule": evaluation.split_rule,
        "noise_ceiling": dataclasses.asdict(ceiling) if ceiling else None,
        "cv": {name: cv_metrics[name] for name in METRICS if name in cv_metrics},
        "holdout": {
            **evaluation.metrics,
            "n_unjudged": evaluation.n_unjudged,
            **({"whole_pool": dataclasses.asdict(evaluation.whole_pool)} if evaluation.whole_pool else {}),
            "within_noise_rate": float(same.mean()) if np.isfinite(same).all() else None,
        },
        **(
            {"extras": {label: dict(figures) for label, figures in evaluation.extras.items()}}
            if evaluation.extras
            else {}
        ),
        "best_of_top_k": list(evaluation.regret),
        "trust": confidence_metrics(evaluation.target.op, per_problem),
        "slices": sliced_metrics(per_problem, slice_names(evaluation.target.op, per_problem)),
        "worst": worst_problems(evaluation),
    }

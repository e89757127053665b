"""Validation reports: efficiency, agreement, and predicted against measured, as JSON and as a Markdown page."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tilewise.campaigns.validate._backward import Predictions
from tilewise.campaigns.validate._request_trace import trace_page
from tilewise.errors import DataError
from tilewise.evaluate import evaluate
from tilewise.files import write_text
from tilewise.markdown import table
from tilewise.model import TrainedModel
from tilewise.ops import OPS, Target

CLOSE = 0.99  # of the oracle: no regret worth mentioning
SHOWN = 20  # problems on the page, lowest efficiency first

ValidationReport = dict[str, Any]


def judge_measurements(mode: str, measured: pd.DataFrame, model: TrainedModel) -> ValidationReport:
    """Judge a model by the measured table of a plan of :mod:`tilewise.campaigns.validate`.

    Efficiencies are those of the selection among the measured kernels, in (0, 1].

    Raises:
        DataError: the table has no problem to judge on, or for mode ``oracle`` no problem with several kernels.
    """
    evaluation = evaluate(model, measured, None, require_unseen=False)
    per_problem = evaluation.per_problem
    if mode == "oracle" and not (per_problem["n_kernels"] > 1).any():
        raise DataError("no problem was measured with more than one kernel, so the oracle is unknown")
    efficiency = per_problem["efficiency"].to_numpy()
    ratio = (per_problem["predicted_tflops"] / per_problem["selected_tflops"]).to_numpy()
    p10, p50, p90 = np.percentile(efficiency, [10, 50, 90])
    low, middle, high = np.percentile(ratio, [10, 50, 90])
    names = OPS[model.target.op].column_names()
    return {
        "mode": mode,
        "target": model.target.name,
        "model": model.content_hash,
        "pool_size": len(model.pool),
        "problems": len(efficiency),
        "left_out": evaluation.n_unjudged,
        "kernels_a_problem": float(per_problem["n_kernels"].mean()),
        "mean_efficiency": float(efficiency.mean()),
        "p10_efficiency": float(p10),
        "median_efficiency": float(p50),
        "p90_efficiency": float(p90),
        "min_efficiency": float(efficiency.min()),
        "agreement": float((per_problem["selected"] == per_problem["oracle"]).mean()),
        "within_1_percent": float((efficiency >= CLOSE).mean()),
        "predicted_over_measured": {"p10": float(low), "median": float(middle), "p90": float(high)},
        "mean_error": float(np.abs(ratio - 1).mean()),
        "r2": float(evaluation.metrics["r2"]),
        "per_problem": [
            {
                "problem": {n: row[n] for n in names},
                **{n: row[n] for n in ("selected", "oracle", "efficiency", "selected_tflops", "oracle_tflops")},
                "predicted_tflops": row["predicted_tflops"],
            }
            for row in per_problem.sort_values("efficiency", kind="stable").to_dict("records")
        ],
    }


def backward_report(results: list[Predictions]) -> ValidationReport:
    """Return the report of predictions without measurements."""
    return {
        "mode": "backward",
        "sound": all(r.sound for r in results),
        "models": [dataclasses.asdict(r) for r in results],
    }


def write_validation_report(folder: Path, report: Mapping[str, Any]) -> None:
    """Write ``validate_MODE.json`` and ``validate_MODE.md``.

    Raises:
        OSError: the folder cannot be written.
    """
    name = f"validate_{report['mode']}"
    write_text(folder / f"{name}.json", json.dumps(report, indent=1) + "\n")
    write_text(folder / f"{name}.md", validation_page(report))


def validation_page(report: Mapping[str, Any]) -> str:
    """Return the report as a Markdown page."""
    if report["mode"] == "backward":
        return _backward_page(report)
    if report["mode"] == "trace":
        return trace_page(report)
    ratio = report["predicted_over_measured"]
    figures = [
        ("problems", f"{report['problems']}"),
        ("kernels measured a problem", f"{report['kernels_a_problem']:.1f} (pool of {report['pool_size']})"),
        *((f"{n} efficiency", f"{100 * report[f'{n}_efficiency']:.2f} %") for n in ("mean", "median", "p10", "min")),
        ("selection is the oracle", f"{100 * report['agreement']:.1f} %"),
        ("within 1 % of it", f"{100 * report['within_1_percent']:.1f} %"),
        ("predicted / measured", f"{ratio['median']:.3f} ({ratio['p10']:.3f} to {ratio['p90']:.3f})"),
        ("mean error of the prediction", f"{100 * report['mean_error']:.1f} %"),
    ]
    op = OPS[Target.parse(report["target"]).op]
    worst = [
        [
            op.in_words(row["problem"]),
            f"{100 * row['efficiency']:.2f} %",
            f"{row['predicted_tflops']:.1f}",
            f"{row['selected_tflops']:.1f}",
            f"{row['oracle_tflops']:.1f}",
        ]
        for row in report["per_problem"][:SHOWN]
    ]
    header = ["problem", "efficiency", "predicted TFLOPS", "measured", "oracle"]
    return (
        f"# Validation of {report['target']}: {report['mode']}\n\n"
        f"{table(['figure', ''], figures)}\n"
        f"The {len(worst)} lowest efficiencies:\n\n{table(header, worst)}"
    )


def _backward_page(report: Mapping[str, Any]) -> str:
    header = ["model", "problems", "unsupported", "seconds", "ms a selection", "kernels", "TFLOPS", "impossible"]
    rows = [
        [
            f"`{m['target']}`",
            f"{m['problems']}",
            f"{m['unsupported']}",
            f"{m['seconds']:.2f}",
            f"{m['median_ms']:.2f}",
            f"{m['kernels']}",
            f"{m['median_tflops']:.1f}",
            f"{m['above_peak'] + m['not_finite']}",
        ]
        for m in report["models"]
    ]
    return f"# Predictions of the backward models\n\n{table(header, rows)}"

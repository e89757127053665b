"""Validation reports: efficiency, agreement, and predicted against measured, as JSON and as a Markdown page."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tilewise.campaigns.validate._backward import Predictions
from tilewise.campaigns.validate._request_trace import trace_page
from tilewise.checks import require
from tilewise.errors import DataError
from tilewise.evaluate import evaluate
from tilewise.files import write_text
from tilewise.markdown import table
from tilewise.model import TrainedModel
from tilewise.ops import OPS, Target

CLOSE = 0.99  # of the oracle: no regret worth mentioning
SHOWN = 20  # problems on the page, lowest efficiency first

ValidationReport = dict[str, Any]


@dataclass(frozen=True)
class Aims:
    """Figures that a validation should reach, in percent; they are reported and refuse nothing.

    Attributes:
        kernel_match_rate: share of problems whose selection is the oracle.
        prediction_accuracy: 100 less the mean error of the predicted TFLOPS.

    Raises:
        ConfigError: an aim is not a number from 0 to 100.
    """

    kernel_match_rate: float = 70.0
    prediction_accuracy: float = 90.0

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            require(f"gate.aims.{name} must be a number from 0 to 100", is_number and 0 <= value <= 100, value)

    def judge(self, agreement: float, mean_error: float) -> dict[str, dict[str, float | bool]]:
        """Return value, aim and whether it is reached, by name; values in percent."""
        reached = {"kernel_match_rate": 100 * agreement, "prediction_accuracy": max(0.0, 100 * (1 - mean_error))}
        aims = vars(self)
        return {n: {"value": value, "aim": aims[n], "reached": value >= aims[n]} for n, value in reached.items()}


def judge_measurements(
    mode: str, measured: pd.DataFrame, model: TrainedModel, aims: Aims | None = None
) -> ValidationReport:
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
    agreement = float((per_problem["selected"] == per_problem["oracle"]).mean())
    mean_error = float(np.abs(ratio - 1).mean())
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
        "agreement": agreement,
        "aims": (aims or Aims()).judge(agreement, mean_error),
        "within_1_percent": float((efficiency >= CLOSE).mean()),
        "predicted_over_measured": {"p10": float(low), "median": float(middle), "p90": float(high)},
        "mean_error": mean_error,
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


def backward_report(
    results: Sequence[Predictions], layers: Sequence[Sequence[Mapping[str, Any]]] = ()
) -> ValidationReport:
    """Return the report of predictions without measurements.

    Args:
        results: one for each model.
        layers: results of :func:`tilewise.campaigns.validate.predict_layer` for each model; empty for none.
    """
    return {
        "mode": "backward",
        "sound": all(r.sound for r in results),
        "models": [
            {**dataclasses.asdict(r), "layers": list(of_model)}
            for r, of_model in zip(results, layers or [()] * len(results), strict=True)
        ],
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
        *((f"aim: {name.replace('_', ' ')}", _aim(aim)) for name, aim in report["aims"].items()),
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
    layers = "".join(_layers_table(m) for m in report["models"] if m["layers"])
    return f"# Predictions of the backward models\n\n{table(header, rows)}{layers}"


def _aim(aim: Mapping[str, Any]) -> str:
    return f"{aim['value']:.1f} %, {'reached' if aim['reached'] else 'missed'} (aim {aim['aim']:g} %)"


def _layers_table(model: Mapping[str, Any]) -> str:
    """Return the predictions of one model by layer, with the kernels' names after the target's part."""
    header = ["layer", "best three, TFLOPS", "mean of all", "pipelines, best of each", "second below best"]
    target = Target.parse(model["target"])
    prefix = f"{target.op}_{target.variant}_{target.dtype}_"
    rows = []
    for layer in model["layers"]:
        top = "; ".join(f"`{k['kernel_name'].removeprefix(prefix)}` {k['tflops']:.1f}" for k in layer["top"])
        pipelines = ", ".join(f"{name} {rate:.1f}" for name, rate in layer["pipelines"].items())
        gap, mean = layer["gap_to_second"], layer["mean_tflops"]
        rows.append(
            [
                layer["layer"],
                top or "no kernel supports it",
                "-" if mean is None else f"{mean:.1f} ({layer['kernels']})",
                pipelines or "-",
                "-" if gap is None else f"{100 * gap:.1f} %",
            ]
        )
    return f"\n## {model['target']}\n\n{table(header, rows)}"

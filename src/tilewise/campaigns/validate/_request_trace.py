"""GPU time of a trace of calls: by one model's selections, another model's, and the fastest kernels measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from tilewise.data import TargetTable
from tilewise.errors import ConfigError, DataError
from tilewise.evaluate import evaluate
from tilewise.markdown import table
from tilewise.model import TrainedModel
from tilewise.ops import OPS, Problem, Target

SHOWN = 20  # problems on the page, largest differences first


def judge_trace(
    calls: Mapping[Problem, int], measured: pd.DataFrame, model: TrainedModel, before: TrainedModel | None
) -> dict[str, Any]:
    """Return the GPU minutes of the traced calls by measurement; calls of unmeasured shapes are left out.

    Args:
        calls: number of calls of each problem.
        measured: measurements; a model selects among the kernels in it.
        model: the model to judge.
        before: a model to compare with; None: no comparison.

    Raises:
        ConfigError: the models are of different targets.
        DataError: no problem of the trace was measured.
    """
    names = list(OPS[model.target.op].column_names())
    asked = pd.DataFrame([{**p.to_dict(), "calls": n, "flops": float(p.flops)} for p, n in calls.items()])
    rows = TargetTable.of(measured, model.target).rows.merge(asked[names], on=names)
    if not len(rows):
        raise DataError(f"none of the {len(calls)} problems of the trace was measured for {model.target.name}")
    if before is not None and before.target != model.target:
        raise ConfigError(f"a must be a model of {model.target.name}, got one of {before.target.name}")
    found, sides = _minutes(asked, rows, model, before)
    lost = found["model_minutes"] - found["fastest_minutes"]
    order = (-found["saved_minutes"].abs() if before is not None else -lost).sort_values(kind="stable").index
    shown = ["calls", *(f"{side}_{figure}" for side in sides for figure in ("ms", "kernel")), "saved_minutes"]
    return {
        "mode": "trace",
        "target": model.target.name,
        "model": model.content_hash,
        "before": None if before is None else before.content_hash,
        "problems": len(calls),
        "judged": len(found),
        "calls": sum(calls.values()),
        "judged_calls": int(found["calls"].sum()),
        "minutes": {side: float(found[f"{side}_minutes"].sum()) for side in sides},
        "saved_minutes": None if before is None else float(found["saved_minutes"].sum()),
        "per_problem": [
            {"problem": {n: row[n] for n in names}, **{n: row[n] for n in shown}}
            for row in found.loc[order].to_dict("records")
        ],
    }


def _minutes(
    asked: pd.DataFrame, rows: pd.DataFrame, model: TrainedModel, before: TrainedModel | None
) -> tuple[pd.DataFrame, list[str]]:
    """Return calls, times and kernels of each measured problem, by side, and the names of the sides."""
    names = list(OPS[model.target.op].column_names())
    found = asked.merge(_times(model, rows, names, "model"), on=names)
    if before is not None:
        found = found.merge(_times(before, rows, names, "before")[[*names, "before_tflops", "before_kernel"]], on=names)
    sides = [side for side in ("before", "model", "fastest") if f"{side}_tflops" in found]
    for side in sides:
        found[f"{side}_ms"] = found["flops"] / found[f"{side}_tflops"] / 1e9
        found[f"{side}_minutes"] = found["calls"] * found[f"{side}_ms"] / 6e4
    found["saved_minutes"] = found[f"{sides[0]}_minutes"] - found[f"{sides[-2]}_minutes"]
    return found, sides


def _times(model: TrainedModel, rows: pd.DataFrame, names: list[str], side: str) -> pd.DataFrame:
    """Return the model's selection and the fastest kernel of each problem that it can be judged on."""
    found = evaluate(model, rows).per_problem
    renamed = {"selected": f"{side}_kernel", "selected_tflops": f"{side}_tflops"}
    fastest = {"oracle": "fastest_kernel", "oracle_tflops": "fastest_tflops"}
    return found[[*names, *renamed, *fastest]].rename(columns=renamed | fastest)


def trace_page(report: Mapping[str, Any]) -> str:
    """Return the report as a Markdown page."""
    minutes, saved = report["minutes"], report["saved_minutes"]
    figures = [
        ("problems asked for", f"{report['problems']}, {report['judged']} of them measured"),
        ("calls", f"{report['calls']}, {report['judged_calls']} of them of measured problems"),
        *((f"GPU minutes, {side}", f"{value:.3f}") for side, value in minutes.items()),
    ]
    if saved is not None:
        possible = minutes["before"] - minutes["fastest"]
        share = f" ({100 * saved / possible:.0f} % of what could be)" if possible > 0 else ""
        figures.append(("GPU minutes saved", f"{saved:.3f}{share}"))
    in_words = OPS[Target.parse(report["target"]).op].in_words
    rows = [
        [in_words(row["problem"]), f"{row['calls']}", *(f"{row[f'{side}_ms']:.4f}" for side in minutes)]
        for row in report["per_problem"][:SHOWN]
    ]
    which = "that change most" if saved is not None else "where most is left to gain"
    return (
        f"# Validation of {report['target']}: trace\n\n{table(['figure', ''], figures)}\n"
        f"The {len(rows)} problems {which}:\n\n{table(['problem', 'calls', *(f'{s}, ms' for s in minutes)], rows)}"
    )

"""What selections cost the calls of a trace: one model's beside another's, and beside the fastest kernels measured."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd

from tilewise.data.rows import is_of
from tilewise.errors import ConfigError, DataError
from tilewise.evaluate.holdout import evaluate
from tilewise.markdown import table
from tilewise.model.trained import TrainedModel
from tilewise.ops import OPS, Problem, Target

SHOWN = 20  # problems of the page, those with most to tell first


def judge_trace(
    calls: Mapping[Problem, int], measured: pd.DataFrame, model: TrainedModel, before: TrainedModel | None
) -> dict[str, Any]:
    """GPU minutes that the traced calls take, by what was measured of each shape; what nobody measured is left out.

    Args:
        calls: how often each problem was asked for.
        measured: measurements; a model selects among the kernels that stand there.
        model: to judge.
        before: to compare with.

    Raises:
        ConfigError: the models are of different targets.
        DataError: no problem of the trace was measured.
    """
    names = list(OPS[model.target.op].column_names())
    asked = pd.DataFrame([{**p.to_dict(), "calls": n, "flops": float(p.flops)} for p, n in calls.items()])
    rows = measured[is_of(measured, model.target)].merge(asked[names], on=names)
    if not len(rows):
        raise DataError(f"none of the {len(calls)} problems of the trace was measured for {model.target.name}")
    found = asked.merge(_times(model, rows, names, "model"), on=names)
    if before is not None:
        if before.target != model.target:
            raise ConfigError(f"a must be a model of {model.target.name}, got one of {before.target.name}")
        found = found.merge(_times(before, rows, names, "before")[[*names, "before_tflops", "before_kernel"]], on=names)
    sides = [side for side in ("before", "model", "fastest") if f"{side}_tflops" in found]
    for side in sides:
        found[f"{side}_ms"] = found["flops"] / found[f"{side}_tflops"] / 1e9
        found[f"{side}_minutes"] = found["calls"] * found[f"{side}_ms"] / 6e4
    found["saved_minutes"] = found[f"{sides[0]}_minutes"] - found[f"{sides[-2]}_minutes"]
    lost = found["model_minutes"] - found["fastest_minutes"]
    order = (-found["saved_minutes"].abs() if before is not None else -lost).sort_values(kind="stable").index
    shown = ["calls", *(f"{side}_{what}" for side in sides for what in ("ms", "kernel")), "saved_minutes"]
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


def _times(model: TrainedModel, rows: pd.DataFrame, names: list[str], side: str) -> pd.DataFrame:
    """What a model selects for each problem that it has a kernel for, and the fastest."""
    found = evaluate(model, rows).per_problem
    renamed = {"selected": f"{side}_kernel", "selected_tflops": f"{side}_tflops"}
    fastest = {"oracle": "fastest_kernel", "oracle_tflops": "fastest_tflops"}
    return found[[*names, *renamed, *fastest]].rename(columns=renamed | fastest)


def trace_page(report: Mapping[str, Any]) -> str:
    """The report in Markdown."""
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

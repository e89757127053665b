"""One self-contained page over a target's holdout: pick a problem, and see its field as the model ranks it.

The page has its data and its script inside and asks no other host for anything, so that it works offline and in MLflow.
It has the best kernels of each problem only, so that it stays small.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from html import escape
from importlib.resources import files
from itertools import pairwise

import numpy as np
import pandas as pd

from tilewise.data import TargetTable, split_rule
from tilewise.errors import DataError
from tilewise.evaluate import ScoredTable, judged_rows
from tilewise.metrics import Ints, efficiency_figures
from tilewise.model import TrainedModel
from tilewise.ops import OPS

FIELD = 20  # kernels shown per problem, by prediction; the fastest and the vendor's calls come in addition
DIGITS = 4  # significant


def explorer_page(model: TrainedModel, frame: pd.DataFrame, holdout_fraction: float | None) -> str:
    """Return the page of a model's selections among measured kernels.

    Args:
        model: the model.
        frame: a measurement table; other targets are ignored.
        holdout_fraction: show only holdout problems, see :func:`tilewise.data.held_out`; None: all problems.

    Raises:
        DataError: the table has no problem to show.
    """
    return render(explorer_data(model, frame, holdout_fraction))


def explorer_data(model: TrainedModel, frame: pd.DataFrame, holdout_fraction: float | None) -> dict[str, object]:
    """Return the page's data, as plain data for JSON; see :func:`explorer_page`."""
    target = model.target
    rows, rule = TargetTable.of(frame, target), "all problems of the table"
    if holdout_fraction is not None:
        rows, rule = rows.holdout(holdout_fraction), split_rule(target, holdout_fraction)
    table = judged_rows(model, rows)[0]
    if not len(table):
        raise DataError(f"no problem of {target.name} to show ({rule}): none has a valid kernel of the pool")
    scored = ScoredTable.of(model, table)
    in_pytorch = np.array([model.pool.backend.source_of(kernel).in_pytorch for kernel in model.pool.kernels])
    return {
        "target": target.name,
        "model": model.content_hash[:12],
        "rule": rule,
        "figures": {name: _rounded(value) for name, value in efficiency_figures(scored.chosen.efficiency).items()},
        "peak_tflops": model.arch.peak(target.dtype),
        "dram_gb_s": model.arch.dram_gb_s,
        "kernels": [name.removeprefix(f"{target.op}_{target.variant}_{target.dtype}_") for name in model.pool.names],
        "vendor": np.flatnonzero(in_pytorch).tolist(),
        "problems": _problems(scored),
    }


def render(data: Mapping[str, object]) -> str:
    """Return the page of :func:`explorer_data`."""
    content = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")  # no text can end the script
    page = (files("tilewise.publish") / "explorer.html").read_text()
    return page.replace("{title}", escape(str(data["target"]))).replace("{data}", content)


def _problems(scored: ScoredTable) -> list[dict[str, object]]:
    """Return each problem with its field: index of the kernel, predicted and measured TFLOPS, best prediction first."""
    table, op = scored.table, OPS[scored.table.target.op]
    kernel, measured = table.kernel(scored.model.pool), table.tflops
    bounds = np.append(np.flatnonzero(np.diff(table.problem, prepend=-1)), len(table))
    found = []
    for number, (problem, (start, stop)) in enumerate(zip(table.problems, pairwise(bounds.tolist()), strict=True)):
        of_problem = np.arange(start, stop)
        field = _field(scored, of_problem[scored.candidate[of_problem]], int(scored.chosen.selected[number]))
        found.append(
            {
                "words": op.in_words(problem.to_dict()),
                "intensity": _rounded(problem.flops / problem.min_bytes(table.target.dtype)),
                "best": _rounded(float(measured[of_problem].max())),
                "efficiency": _rounded(float(scored.chosen.efficiency[number])),
                "of": int(scored.candidate[of_problem].sum()),
                "field": [[int(kernel[i]), _rounded(scored.predicted[i]), _rounded(measured[i])] for i in field],
            }
        )
    return found


def _field(scored: ScoredTable, candidates: Ints, selected: int) -> Ints:
    """Return the rows to show: the selection, then the best by prediction, the fastest and the vendor's calls."""
    ranked = candidates[np.argsort(-scored.predicted[candidates], kind="stable")]
    ranked = np.concatenate([[selected], ranked[ranked != selected]])
    pool = scored.model.pool
    number = scored.table.kernel(pool)[ranked]
    is_call = np.array([pool.backend.source_of(pool.kernels[i]).in_pytorch for i in number])
    shown = is_call | (np.arange(len(ranked)) < FIELD) | (ranked == ranked[scored.table.tflops[ranked].argmax()])
    kept: Ints = ranked[shown]
    return kept


def _rounded(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")

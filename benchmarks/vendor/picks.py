"""Kernels that represent the pool against the vendor: the fastest few of each validation problem in the recorded table.

With a model, its selection is added, the kernel that a dispatcher would launch. This module needs pandas; its JSON file
is copied to the GPU machine.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd

from tilewise.arch import load_arch
from tilewise.collect import Item, Plan, Timing
from tilewise.data import (
    TargetTable,
    group_keys,
    holdout_mask,
    labelled,
    problem_index,
    problems_of,
    read_measurements,
    split_rule,
)
from tilewise.dispatch import Dispatcher
from tilewise.errors import ConfigError, DataError
from tilewise.evaluate import slice_labels
from tilewise.kernels import Pool
from tilewise.kernels.triton import Kernel
from tilewise.ops import Problem, Target

# Every candidate runs in every round, so that a slow vendor is measured as precisely as a fast one.
TIMING = Timing(rounds=16, min_rounds=8, budget_ms=16.0, trailing=1e9, hopeless=1e9, finalists=0, final_rounds=0)


def pick(
    frame: pd.DataFrame, target: Target, fraction: float, top: int, dispatcher: Dispatcher | None = None
) -> dict[str, Any]:
    """Return the fastest `top` kernels of each validation problem, with a plan that holds problems and kernels.

    Args:
        frame: a measurement table of `target`.
        target: the target.
        fraction: the holdout's share of the problems; the holdout problems are the validation problems.
        top: kernels per problem.
        dispatcher: its selections are recorded as well.

    Raises:
        ConfigError: the dispatcher selects for another target.
        DataError: the table holds no validation problem.
    """
    if dispatcher and dispatcher.target != target:
        raise ConfigError(f"the model is of {dispatcher.target.name}, not of {target.name}")
    frame = TargetTable.of(frame, target).rows
    held = frame[holdout_mask(target.op, group_keys(target.op, frame), fraction)]
    if not len(held):
        raise DataError(f"no validation problem of {target.name}: {split_rule(target, fraction)}")
    rows = labelled(held, target.op)
    problems = problems_of(rows, target)
    rows = rows.assign(problem=problem_index(rows, target.op))
    best = rows[rows["is_valid"]].sort_values(["problem", "latency_ms"], kind="stable").groupby("problem").head(top)
    columns = list(Kernel.column_names())
    kernels = [Kernel.from_dict(k) for k in best[columns].drop_duplicates().to_dict("records")]
    selected = [_selected(dispatcher, p) for p in problems] if dispatcher else []
    pool = Pool(target.op, target.variant, target.dtype, tuple(dict.fromkeys([*kernels, *filter(None, selected)])))
    place = {name: i for i, name in enumerate(pool.names)}
    origins = rows.drop_duplicates("problem")["origin"]
    arch = load_arch(target.arch)
    items = tuple(Item(p, str(o)) for p, o in zip(problems, origins, strict=True))
    plan = Plan(target, arch, pool, items, TIMING, "vendor")
    labels = slice_labels(problems, target, arch).to_dict("records")
    chosen = best.groupby("problem")["kernel_name"].apply(list).to_dict()
    by_model: dict[str, Any] = {}
    if dispatcher:
        by_model["model"] = dispatcher.content_hash
        by_model["selected"] = [None if k is None else pool.find(k) for k in selected]
    return {
        "rule": f"the {top} fastest of the recorded table; validation: {split_rule(target, fraction)}",
        "recorded_kernels": int(rows["kernel_name"].nunique()),
        "labels": labels,
        "picks": [[place[name] for name in chosen.get(i, [])] for i in range(len(problems))],
        **by_model,
        "plan": json.loads(plan.dumps()),
    }


def _selected(dispatcher: Dispatcher, problem: Problem) -> Any:
    """Return the kernel that is launched for a problem; None if no kernel supports it."""
    return dispatcher.select(problem).kernel if dispatcher.is_supported(problem) else None


def pick_from(data: Path, target: Target, fraction: float, top: int, model: Path | None = None) -> dict[str, Any]:
    """Run :func:`pick` on a parquet file or a folder of them, and the folder of a model."""
    dispatcher = Dispatcher.from_folder(model) if model else None
    return pick(read_measurements(data, target), target, fraction, top, dispatcher)

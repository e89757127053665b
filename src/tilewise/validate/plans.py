"""What to measure, so that a table says how well a model selects."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pandas as pd

from tilewise.collect.plan import Item, Plan, Timing
from tilewise.data.labels import valid_labels
from tilewise.data.rows import is_of, is_supported, pool_index, problem_index, problems_of, sort_rows
from tilewise.data.splits import group_keys, holdout_mask
from tilewise.errors import DataError
from tilewise.metrics import select
from tilewise.model.trained import TrainedModel
from tilewise.ops import OPS

TRAINING = "training"  # origin of problems that the model learnt from


def training_shapes(
    frame: pd.DataFrame, model: TrainedModel, count: int, timing: Timing, run_id: str, seed: int
) -> Plan:
    """Problems that the model learnt from, each with two kernels: the recorded oracle and what the model selects.

    Where both are one kernel, it is measured alone.

    Args:
        frame: measurements that the model was trained on.
        model: selects, among the kernels that were measured.
        count: of problems, drawn by `seed`; all where there are fewer.
        timing: of the plan.
        run_id: of the plan.
        seed: of the draw.

    Raises:
        DataError: no problem of `frame` could have been learnt from.
    """
    rows = frame[is_of(frame, model.target)]
    fraction = float(model.manifest.get("holdout_fraction", 0.0))
    rows = rows[~holdout_mask(model.target.op, group_keys(model.target.op, rows), fraction)]
    rows = valid_labels(rows, model.target.op)
    rows = sort_rows(rows, model.target, model.pool)
    rows = rows[is_supported(rows, model.target, model.pool)]
    if not len(rows):
        raise DataError(f"no measured problem of {model.target.name} outside the holdout")
    number = problem_index(rows, model.target.op)
    drawn = np.sort(np.random.default_rng(seed).permutation(int(number.max()) + 1)[:count])
    rows = rows[np.isin(number, drawn)].reset_index(drop=True)
    number = problem_index(rows, model.target.op)
    score = model.score_candidates(
        number,
        {n: rows[n].to_numpy() for n in OPS[model.target.op].column_names()},
        {n: rows[n].to_numpy() for n in model.pool.columns},
    )
    chosen = select(number, rows["tflops"].to_numpy(dtype=np.float64), score)
    kernel = pool_index(rows, model.pool)
    items = tuple(
        Item(problem, TRAINING, tuple(sorted({int(kernel[selected]), int(kernel[oracle])})))
        for problem, selected, oracle in zip(
            problems_of(rows, model.target), chosen.selected, chosen.oracle, strict=True
        )
    )
    return Plan(model.target, model.arch, model.pool, items, timing, run_id)


def unseen_shapes(
    items: Sequence[Item],
    frame: pd.DataFrame | None,
    model: TrainedModel,
    count: int,
    timing: Timing,
    run_id: str,
    seed: int,
) -> Plan:
    """Problems that the model did not learn from, each with the whole pool, so that the oracle is known.

    Args:
        items: problems to choose from.
        frame: measurements that the model was trained on: what stands there outside the holdout was seen; None: the
            holdout alone is unseen.
        model: to be judged.
        count: of problems, drawn by `seed`; all where there are fewer.
        timing: of the plan.
        run_id: of the plan.
        seed: of the draw.

    Raises:
        DataError: every problem was seen, or is supported by no kernel.
    """
    op, fraction = model.target.op, float(model.manifest.get("holdout_fraction", 0.0))
    keys = np.array([item.problem.group_key for item in items], dtype=np.int64)
    unseen = holdout_mask(op, keys, fraction)
    if frame is not None:
        known = set(map(tuple, group_keys(op, frame[is_of(frame, model.target)]).tolist()))
        unseen = unseen | np.array([tuple(key) not in known for key in keys.tolist()])
    left = [i for i, new in zip(items, unseen, strict=True) if new and model.supported(i.problem).any()]
    if not left:
        raise DataError(f"all {len(items)} problems were seen in training, or are supported by no kernel of the pool")
    drawn = np.sort(np.random.default_rng(seed).permutation(len(left))[:count])
    return Plan(model.target, model.arch, model.pool, tuple(left[i] for i in drawn), timing, run_id)

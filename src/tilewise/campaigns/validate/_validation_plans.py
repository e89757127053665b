"""Plans whose table tells how well a model selects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from tilewise.collect import Item, Plan, Timing
from tilewise.data import TargetTable, held_out, split_keys
from tilewise.errors import DataError
from tilewise.metrics import select
from tilewise.model import TrainedModel

TRAINING = "training"  # origin of problems that the model was trained on


@dataclass(frozen=True)
class ShapePlanOptions:
    """Size and run of a validation plan.

    Attributes:
        count: number of problems to draw; all where there are fewer.
        timing: timing of the plan.
        run_id: name of the plan's run.
        seed: seed of the draw.
    """

    count: int
    timing: Timing
    run_id: str
    seed: int


def plan_training_shapes(frame: pd.DataFrame, model: TrainedModel, options: ShapePlanOptions) -> Plan:
    """Return a plan of training problems, each with two kernels: the recorded oracle and the model's selection.

    A problem has a single kernel where both are the same.

    Args:
        frame: the measurements that the model was trained on.
        model: selects among the measured kernels.
        options: size and run of the plan.

    Raises:
        DataError: `frame` has no training problem of the model.
    """
    fraction = float(model.manifest.get("holdout_fraction", 0.0))
    training = TargetTable.of(frame, model.target).training(fraction)
    labels = training.labelled().ordered(model.pool).supported(model.pool)
    if not len(labels):
        raise DataError(f"no measured problem of {model.target.name} outside the holdout")
    labels = labels.draw(options.count, options.seed)
    score = model.score_candidates(labels.problem, labels.problem_columns(), labels.kernel_columns(model.pool))
    chosen = select(labels.problem, labels.tflops, score)
    kernel = labels.kernel(model.pool)
    items = tuple(
        Item(problem, TRAINING, tuple(sorted({int(kernel[selected]), int(kernel[oracle])})))
        for problem, selected, oracle in zip(labels.problems, chosen.selected, chosen.oracle, strict=True)
    )
    return Plan(model.target, model.arch, model.pool, items, options.timing, options.run_id)


def plan_unseen_shapes(
    items: Sequence[Item], frame: pd.DataFrame | None, model: TrainedModel, options: ShapePlanOptions
) -> Plan:
    """Return a plan of problems that the model was not trained on, each with the whole pool, to find the oracle.

    Args:
        items: problems to choose from.
        frame: the measurements that the model was trained on, whose problems outside the holdout count as seen; None:
            only the holdout counts as unseen.
        model: the model to judge.
        options: size and run of the plan.

    Raises:
        DataError: all problems were seen, or are supported by no kernel.
    """
    target, fraction = model.target, float(model.manifest.get("holdout_fraction", 0.0))
    keys = np.array([item.problem.group_key for item in items], dtype=np.int64)
    unseen = held_out(target, keys, fraction)
    if frame is not None:
        known = set(map(tuple, TargetTable.of(frame, target).split_keys.tolist()))
        unseen = unseen | np.array([tuple(key) not in known for key in split_keys(target, keys).tolist()])
    left = [i for i, new in zip(items, unseen, strict=True) if new and model.supported(i.problem).any()]
    if not left:
        raise DataError(f"all {len(items)} problems were seen in training, or are supported by no kernel of the pool")
    drawn = np.sort(np.random.default_rng(options.seed).permutation(len(left))[: options.count])
    return Plan(target, model.arch, model.pool, tuple(left[i] for i in drawn), options.timing, options.run_id)

"""Learning curves: the efficiency of models that learnt from fewer problems, or have fewer trees.

The curve by trees costs nothing: the cross-validation evaluates its folds while they grow. The curve by problems takes
short trainings of one fold, about a twentieth of a training with tuning. A quarter of the trees gives the same slope.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tilewise.cluster import LOCAL, Executor
from tilewise.train._cross_validation import Fold, TrainingData, fold_score, selections_by_score
from tilewise.train._dataset import Floats
from tilewise.train._settings import ModelSettings
from tilewise.train._training_result import CurvePoint

SHARES = (1 / 8, 1 / 4, 1 / 2)  # of the fold's training problems; the point of all of them is known
TREE_SHARE = 1 / 4  # of the model's trees
MIN_PROBLEMS = 10  # of a point


def curve_by_trees(grown: Mapping[int, Floats]) -> tuple[CurvePoint, ...]:
    """Return the out-of-fold efficiency as trees grow.

    Args:
        grown: see :attr:`~tilewise.train._cross_validation.CrossValidation.grown`.
    """
    return tuple(_point(n, efficiency) for n, efficiency in grown.items())


def curve_by_problems(
    data: TrainingData,
    fold: Fold,
    model: ModelSettings,
    grown: Mapping[int, Floats],
    executor: Executor = LOCAL,
) -> tuple[CurvePoint, ...]:
    """Return the efficiency on one fold's test problems, learnt from growing parts of its training problems.

    Each part contains the smaller ones.

    Args:
        data: the prepared table.
        fold: one of the cross-validated folds.
        model: settings of the trees.
        grown: as for :func:`curve_by_trees`; it gives the point of all problems.
        executor: runs the trainings.
    """
    table = data.table
    n_trees = min(n for n in grown if n >= TREE_SHARE * model.n_estimators)
    fewer, rows = replace(model, n_estimators=n_trees), table.measured_rows_of(fold.test)
    # Problems of one group are added together, as they would be measured.
    order = np.random.default_rng(data.settings.seed).permutation(int(table.group.max()) + 1)[table.group[fold.train]]
    parts = [part for share in SHARES if len(part := fold.train[order <= np.quantile(order, share)]) >= MIN_PROBLEMS]
    scores = executor.map(_fold_score, (data, fewer), [Fold(part, fold.test) for part in parts])
    points = [
        _point(len(part), selections_by_score(table, rows, score).efficiency)
        for part, score in zip(parts, scores, strict=True)
    ]
    return (*points, _point(len(fold.train), grown[n_trees][fold.test]))


def _fold_score(shared: tuple[TrainingData, ModelSettings], fold: Fold) -> Floats:
    data, model = shared
    return fold_score(data, fold, model)


def _point(n: int, efficiency: Floats) -> CurvePoint:
    efficiency = efficiency[np.isfinite(efficiency)]  # untested problems have NaN
    return CurvePoint(n, float(efficiency.mean()), float(np.percentile(efficiency, 10)))

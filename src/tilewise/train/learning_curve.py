"""Whether more problems or more trees would help: how a model selects that learnt from less, or grew less.

Trees cost nothing extra: the cross-validation looks at its folds while they grow. Problems are paid for by short
trainings of one fold, which is about a twentieth of a training with tuning; at a quarter of the trees the slope is the
same.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np

from tilewise.train.baseline import Baselines
from tilewise.train.boosting import Bins
from tilewise.train.cross_validation import Fold, fold_score, judge
from tilewise.train.dataset import Floats, Table
from tilewise.train.result import CurvePoint
from tilewise.train.settings import ModelSettings, TrainSettings

SHARES = (1 / 8, 1 / 4, 1 / 2)  # of the problems that a fold learns from; all of them are known already
TREES = 1 / 4  # of the model's
FEWEST = 10  # problems


def curve_by_trees(grown: Mapping[int, Floats]) -> tuple[CurvePoint, ...]:
    """Out-of-fold efficiency as trees grow.

    Args:
        grown: see :attr:`~tilewise.train.cross_validation.CrossValidation.grown`.
    """
    return tuple(_point(n, efficiency) for n, efficiency in grown.items())


def curve_by_problems(
    table: Table,
    bins: Bins,
    baselines: Baselines,
    fold: Fold,
    model: ModelSettings,
    settings: TrainSettings,
    grown: Mapping[int, Floats],
) -> tuple[CurvePoint, ...]:
    """Efficiency on one fold's test problems, learnt from a part of its training problems; each part holds the last.

    Args:
        table: the rows.
        bins: of ``table.matrix``.
        baselines: of `table`.
        fold: one of those that were cross-validated.
        model: how trees grow.
        settings: seed and threads.
        grown: as for :func:`curve_by_trees`; the point of all problems is taken from it.
    """
    n_trees = min(n for n in grown if n >= TREES * model.n_estimators)
    fewer, rows = replace(model, n_estimators=n_trees), table.rows_of(fold.test)
    # Problems of one group come together, as they would be measured.
    order = np.random.default_rng(settings.seed).permutation(int(table.group.max()) + 1)[table.group[fold.train]]
    parts = (fold.train[order <= np.quantile(order, share)] for share in SHARES)
    points = [
        _point(
            len(part),
            judge(table, rows, fold_score(table, bins, baselines, Fold(part, fold.test), fewer, settings)).efficiency,
        )
        for part in parts
        if len(part) >= FEWEST
    ]
    return (*points, _point(len(fold.train), grown[n_trees][fold.test]))


def _point(n: int, efficiency: Floats) -> CurvePoint:
    efficiency = efficiency[np.isfinite(efficiency)]  # where it can be judged
    return CurvePoint(n, float(efficiency.mean()), float(np.percentile(efficiency, 10)))

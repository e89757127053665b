"""Which features trees gain by: a selection computes and looks up every feature that its model has."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewise.train.baseline import Baselines
from tilewise.train.boosting import Bins
from tilewise.train.dataset import Table
from tilewise.train.labels import labels
from tilewise.train.settings import TrainSettings

TREES = 50  # enough to see what splits go to


def by_gain(table: Table, settings: TrainSettings) -> tuple[str, ...]:
    """Names of the features, those first that a few trees over all problems gain most by; ties in the table's order."""
    few = replace(settings.model, n_estimators=TREES)
    bins = Bins(table.matrix, table.features.names, few.max_bin, settings.threads)
    baselines = Baselines(table, few, settings.seed)
    learnt, rows = (
        labels(table, few, baselines.of_all().scores),
        baselines.rows_to_learn(np.arange(len(table.problems))),
    )
    gain = bins.fit(few, learnt, settings.seed, settings.threads, rows).feature_importance("gain")
    return tuple(table.features.names[i] for i in np.argsort(-gain, kind="stable"))


def with_most_gain(table: Table, settings: TrainSettings) -> Table:
    """`table` with the `model.n_features` features that trees gain most by; all where that is 0.

    They are chosen once, by the problems that folds test on as well: out-of-fold figures are better by what that tells,
    the holdout's are not.
    """
    wanted = settings.model.n_features
    if not 0 < wanted < len(table.features.names):
        return table
    return table.with_features(by_gain(table, settings)[:wanted])

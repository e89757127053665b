"""Feature selection by gain: a model computes and looks up each of its features in every selection."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from tilewise.train._cross_validation import TrainingData
from tilewise.train._dataset import Table
from tilewise.train._settings import TrainSettings
from tilewise.train._training_labels import make_labels
from tilewise.train.cost_model import Baselines

N_TREES = 50  # enough to show which features the splits use


def rank_features(table: Table, settings: TrainSettings, baselines: Baselines | None = None) -> tuple[str, ...]:
    """Return the feature names by their total gain in a few trees over all problems, largest first.

    Ties keep the table's order. `baselines` are those of the table's rows, set up here for None.
    """
    few = replace(settings.model, n_estimators=N_TREES)
    data = TrainingData.prepare(table, replace(settings, model=few), baselines)
    labels = make_labels(table, few, data.baselines.of_all().scores)
    rows = data.baselines.training_rows(np.arange(len(table.problems)))
    gain = data.bins.fit(few, labels, data.fit, rows).feature_importance("gain")
    return tuple(table.features.names[i] for i in np.argsort(-gain, kind="stable"))


def select_features(table: Table, settings: TrainSettings, baselines: Baselines | None = None) -> Table:
    """Return `table` with its `model.n_features` best features; with all of them where that is 0.

    The features are chosen once, with the test problems of all folds. That leaks into the out-of-fold figures, which
    are optimistic; holdout figures are not affected. `baselines` are as for :func:`rank_features`.
    """
    wanted = settings.model.n_features
    if not 0 < wanted < len(table.features.names):
        return table
    return table.with_features(rank_features(table, settings, baselines)[:wanted])

"""LightGBM, configured so that equal input and an equal number of threads give equal trees.

Bins are built once over all rows; folds and trials train on subsets of them. The bins depend on the feature values of
validation rows, never on their labels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, NamedTuple, cast

import lightgbm as lgb
import numpy as np

from tilewise._ahead import ahead
from tilewise.features import BATCH_ROWS, FeatureRows
from tilewise.train._dataset import Floats, Ints
from tilewise.train._ranking import Params
from tilewise.train._settings import ModelSettings
from tilewise.train._training_labels import Labels

_FIXED: Params = {
    "objective": "regression",
    "metric": "none",
    "verbosity": -1,
    "deterministic": True,
    "force_row_wise": True,
    # Trials that share their bins could not change min_child_samples otherwise.
    "feature_pre_filter": False,
    # Bundles of nearly exclusive features tolerate a few conflicting rows. Scores over bins, as folds compute them,
    # would then differ from scores over values, as the model computes them.
    "enable_bundle": False,
}

# The scale is learnt from one row per problem: few rows, so small trees. Scores of lambdarank start from the cost
# model, and each tree takes time in a selection: a few that correct their level suffice.
_SCALE_SETTINGS = {
    "relative": ModelSettings(n_estimators=300, learning_rate=0.05, num_leaves=15, min_child_samples=5,
                              feature_fraction=0.5),
    "lambdarank": ModelSettings(n_estimators=40, learning_rate=0.1, num_leaves=4, min_child_samples=10,
                                feature_fraction=0.5),
}  # fmt: skip
# Trees that carry the whole level of a problem may have a leaf per this many problems. On the folds of MIOpen's
# targets, 15 leaves are best for 1,300 problems, and 63 for 10,000.
_PROBLEMS_PER_LEAF, _MOST_SCALE_LEAVES = 150, 63


def scale_settings(label: str, n_problems: int) -> ModelSettings:
    """Return the settings of the trees that predict the scale, learnt from this many problems."""
    settings = _SCALE_SETTINGS[label]
    if label != "relative":
        return settings
    leaves = min(max(settings.num_leaves, n_problems // _PROBLEMS_PER_LEAF), _MOST_SCALE_LEAVES)
    return replace(settings, num_leaves=leaves)


class Fit(NamedTuple):
    """The seed of a booster and its number of threads (0: all cores)."""

    seed: int
    threads: int


def lightgbm_params(settings: ModelSettings, fit: Fit) -> Params:
    """Return the parameters of one booster."""
    return {
        **_FIXED,
        "learning_rate": settings.learning_rate,
        "num_leaves": settings.num_leaves,
        "min_child_samples": settings.min_child_samples,
        "feature_fraction": settings.feature_fraction,
        "bagging_fraction": settings.bagging_fraction,
        "bagging_freq": settings.bagging_freq,
        "lambda_l2": settings.lambda_l2,
        "max_bin": settings.max_bin,
        "seed": fit.seed,
        "num_threads": fit.threads,
    }


class Growth(NamedTuple):
    """Trees grown so far: their number, the scores of the test rows, and the booster."""

    n_trees: int
    scores: Floats
    booster: lgb.Booster


class Bins:
    """A feature matrix cut into bins once; boosters are fitted on subsets of its rows. Not thread-safe.

    Args:
        matrix: feature values of shape (rows, features), in memory or computed as they are read.
        names: of the features.
        max_bin: most bins of a feature.
        threads: of LightGBM, 0 for all cores.
        network: further parameters where several processes learn together, each from rows of its own.
    """

    def __init__(
        self,
        matrix: Floats | FeatureRows,
        names: tuple[str, ...],
        max_bin: int,
        threads: int,
        network: Params | None = None,
    ) -> None:
        self._arguments = (matrix, names, max_bin, threads)
        self._network = network or {}
        params = {**_FIXED, "max_bin": max_bin, "num_threads": threads, **self._network}
        # LightGBM requires labels before it builds subsets; each fit sets its own.
        data = matrix if isinstance(matrix, np.ndarray) else _Batches(matrix)
        labels = np.zeros(len(matrix), dtype=np.float32)
        self._full = _Dataset(data, label=labels, feature_name=list(names), params=params)
        self._full.construct()
        self._rows = len(matrix)

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        """Pickle the matrix for another process, which cuts it into equal bins."""
        return Bins, self._arguments

    def fit(self, settings: ModelSettings, labels: Labels, fit: Fit, rows: Ints | None = None) -> lgb.Booster:
        """Return a booster fitted on `rows`, or on all rows for None."""
        rows = np.arange(self._rows) if rows is None else rows
        booster, grow = self._booster(settings, labels, rows, fit)
        for _ in range(settings.n_estimators):
            grow()
        return booster

    def fit_predict(self, settings: ModelSettings, labels: Labels, train: Ints, test: Ints, fit: Fit) -> Floats:
        """Fit on the rows `train` and return the scores of the rows `test`, of shape (len(test),)."""
        *_, last = self.grow(settings, labels, train, test, fit, every=settings.n_estimators)
        return last.scores

    def grow(
        self, settings: ModelSettings, labels: Labels, train: Ints, test: Ints, fit: Fit, *, every: int
    ) -> Iterator[Growth]:
        """Fit on the rows `train`, yielding the scores of the rows `test` after each `every` trees and the last."""
        booster, grow = self._booster(settings, labels, train, fit)
        # LightGBM updates the scores of a validation set tree by tree, over bins, at nearly no cost.
        booster.add_valid(self._subset(test), "test")
        for n_trees in range(1, settings.n_estimators + 1):
            grow()
            if n_trees % every == 0 or n_trees == settings.n_estimators:
                yield Growth(n_trees, _valid_scores(booster), booster)

    def _booster(
        self, settings: ModelSettings, labels: Labels, rows: Ints, fit: Fit
    ) -> tuple[lgb.Booster, Callable[[], object]]:
        """Return an empty booster over `rows` and the function that adds one tree."""
        params, data = {**lightgbm_params(settings, fit), **self._network}, self._labelled(rows, labels)
        if labels.objective is None:
            booster = lgb.Booster(params, data)
            return booster, booster.update
        booster = lgb.Booster(params | dict(labels.objective.params), data)
        gradients = labels.objective.gradients(rows)
        if gradients is None:
            return booster, booster.update
        return booster, lambda: booster.update(fobj=lambda scores, _: gradients(scores))

    def _labelled(self, rows: Ints, labels: Labels) -> lgb.Dataset:
        """Return a data set of its own for each booster: those that grow on later must not see labels of others."""
        data = self._subset(rows)
        data.set_label(labels.values[rows])
        if labels.weight is not None:
            data.set_weight(labels.weight[rows].astype(np.float32))
        for name, values in (labels.objective.fields(rows) if labels.objective else {}).items():
            data.set_field(name, values)
        return data

    def _subset(self, rows: Ints) -> lgb.Dataset:
        return self._full.subset(rows.tolist()).construct()


class _Dataset(lgb.Dataset):
    """A data set that reads its sample at once: row by row, it would take longer than filling the bins."""

    @staticmethod
    def _yield_row_from_seqlist(seqs: list[lgb.Sequence], indices: Iterable[int]) -> Iterator[Floats]:
        (batches,) = seqs
        return iter(batches[cast(Any, indices)])


class _Batches(lgb.Sequence):
    """Features as LightGBM reads them: a sample of ascending rows to choose bins, and batches to fill the bins.

    It reads all batches once and in order, so the next one is computed while it fills the bins of another.
    """

    batch_size = 8 * BATCH_ROWS  # LightGBM's threads wait for each other at the end of each

    def __init__(self, rows: FeatureRows) -> None:
        self._rows = rows
        starts = range(0, len(rows), self.batch_size)
        self._batches = ahead(rows[start : start + self.batch_size] for start in starts)

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Floats:
        return next(self._batches) if isinstance(index, slice) else self._rows[index]


def _valid_scores(booster: lgb.Booster) -> Floats:
    scores: list[Floats] = []

    def keep(predictions: Floats, _: lgb.Dataset) -> tuple[str, float, bool]:
        scores.append(predictions.copy())
        return "scores", 0.0, True

    booster.eval_valid(feval=keep)
    return scores[0]


def model_text(booster: lgb.Booster) -> str:
    """Return LightGBM's text model with the number of threads set to 0, so that it does not change the file."""
    text = str(booster.model_to_string(num_iteration=-1))
    return re.sub(r"^\[num_threads: -?\d+\]$", "[num_threads: 0]", text, flags=re.MULTILINE)

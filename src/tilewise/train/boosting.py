"""LightGBM, set up so that equal input and an equal number of threads give equal trees.

Bins are built once over all rows; folds and trials train on subsets of them. Bins see feature values of validation
rows, never their labels.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

import lightgbm as lgb
import numpy as np

from tilewise.train.dataset import Floats, Ints
from tilewise.train.labels import Labels
from tilewise.train.settings import ModelSettings

Params = Mapping[str, Any]

_FIXED = {
    "objective": "regression",
    "metric": "none",
    "verbosity": -1,
    "deterministic": True,
    "force_row_wise": True,
    # Without: min_child_samples could not change between trials that share their bins.
    "feature_pre_filter": False,
    # Bundles of nearly exclusive features tolerate a few conflicting rows; then scores over bins, as folds compute
    # them, would differ from scores over values, as the model computes them.
    "enable_bundle": False,
}

# The problem's best TFLOPS is learnt from one row a problem: few rows, so small trees.
SCALE_SETTINGS = ModelSettings(
    n_estimators=300,
    learning_rate=0.05,
    num_leaves=15,
    min_child_samples=5,
    feature_fraction=0.5,
    bagging_fraction=0.8,
    max_bin=255,
)


def lightgbm_params(settings: ModelSettings, seed: int, threads: int) -> dict[str, Any]:
    """The parameters of one booster."""
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
        "seed": seed,
        "num_threads": threads,
    }


class Growth(NamedTuple):
    """Trees on their way: how many, what they make of the rows to test on, and the booster that holds them."""

    n_trees: int
    scores: Floats
    booster: lgb.Booster


class Bins:
    """A matrix cut into bins once; boosters are fitted on subsets of its rows. Not safe to share between threads."""

    def __init__(self, matrix: Floats, names: tuple[str, ...], max_bin: int, threads: int) -> None:
        params = {**_FIXED, "max_bin": max_bin, "num_threads": threads}
        # LightGBM insists on labels before it hands out subsets; each fit sets its own.
        self._full = lgb.Dataset(matrix, label=np.zeros(len(matrix)), feature_name=list(names), params=params)
        self._full.construct()
        self._subsets: dict[bytes, lgb.Dataset] = {}
        self._rows = len(matrix)

    def fit(
        self, settings: ModelSettings, labels: Labels, seed: int, threads: int, rows: Ints | None = None
    ) -> lgb.Booster:
        """Trees over these rows; None: over all."""
        rows = np.arange(self._rows) if rows is None else rows
        booster, grow = self._booster(settings, labels, rows, seed, threads)
        for _ in range(settings.n_estimators):
            grow()
        return booster

    def fit_predict(
        self, settings: ModelSettings, labels: Labels, train: Ints, test: Ints, seed: int, threads: int
    ) -> Floats:
        """Fit on the rows `train`, score the rows `test`: (len(test),)."""
        *_, last = self.grow(settings, labels, train, test, seed, threads, every=settings.n_estimators)
        return last.scores

    def grow(
        self, settings: ModelSettings, labels: Labels, train: Ints, test: Ints, seed: int, threads: int, *, every: int
    ) -> Iterator[Growth]:
        """Fit on the rows `train`, scoring the rows `test` after each `every` trees and after the last."""
        booster, grow = self._booster(settings, labels, train, seed, threads)
        # Scores of a validation set are kept up to date while trees grow: over bins, and so nearly for free.
        booster.add_valid(self._subset(test), "test")
        for n_trees in range(1, settings.n_estimators + 1):
            grow()
            if n_trees % every == 0 or n_trees == settings.n_estimators:
                yield Growth(n_trees, _valid_scores(booster), booster)

    def _booster(
        self, settings: ModelSettings, labels: Labels, rows: Ints, seed: int, threads: int
    ) -> tuple[lgb.Booster, Callable[[], object]]:
        """Trees to come over these rows, and what adds one."""
        params, data = lightgbm_params(settings, seed, threads), self._labelled(rows, labels)
        if labels.objective is None:
            booster = lgb.Booster(params, data)
            return booster, booster.update
        booster = lgb.Booster(params | dict(labels.objective.params), data)
        gradients = labels.objective.gradients(rows)
        if gradients is None:
            return booster, booster.update
        return booster, lambda: booster.update(fobj=lambda scores, _: gradients(scores))

    def _labelled(self, rows: Ints, labels: Labels) -> lgb.Dataset:
        data = self._subset(rows)
        data.set_label(labels.values[rows])
        special = labels.objective.fields(rows) if labels.objective else {}
        weight = None if labels.weight is None else labels.weight[rows].astype(np.float32)
        # Not set_weight and its like: those leave what an earlier fit has set where they are given None.
        for name, values in (("weight", weight), *((n, special.get(n)) for n in ("group", "init_score"))):
            data.set_field(name, values)
        return data

    def _subset(self, rows: Ints) -> lgb.Dataset:
        key = rows.tobytes()
        if key not in self._subsets:
            self._subsets[key] = self._full.subset(rows.tolist()).construct()
        return self._subsets[key]


def _valid_scores(booster: lgb.Booster) -> Floats:
    scores: list[Floats] = []

    def keep(predictions: Floats, _: lgb.Dataset) -> tuple[str, float, bool]:
        scores.append(predictions.copy())
        return "scores", 0.0, True

    booster.eval_valid(feval=keep)
    return scores[0]


def model_text(booster: lgb.Booster) -> str:
    """The text model, without the number of threads that it was grown by."""
    text = str(booster.model_to_string(num_iteration=-1))
    return re.sub(r"^\[num_threads: -?\d+\]$", "[num_threads: 0]", text, flags=re.MULTILINE)

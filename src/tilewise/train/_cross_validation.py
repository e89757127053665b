"""Grouped cross-validation: problems that share a split key never lie on both sides of a fold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from sklearn.model_selection import GroupKFold

from tilewise.errors import DataError
from tilewise.metrics import Selections, select, summarise
from tilewise.train._boosting import SCALE_SETTINGS, Bins, Fit, Growth
from tilewise.train._dataset import Floats, Ints, Table, renumbered
from tilewise.train._settings import ModelSettings, TrainSettings
from tilewise.train._training_labels import Labels, make_labels, to_tflops
from tilewise.train._training_result import FoldResult, OutOfFold
from tilewise.train._warm_start import BaseModel
from tilewise.train.cost_model import Baselines

# Selections of a fold are evaluated this often while its trees grow, for the learning curve.
CURVE_POINTS = 8


@dataclass(frozen=True)
class Fold:
    """Problems to train on and to test on, as ascending indices into :attr:`Table.problems`."""

    train: Ints
    test: Ints


@dataclass(frozen=True)
class TrainingData:
    """A table prepared for training, computed once and shared by tuning, cross-validation and the final fit.

    Attributes:
        table: the rows.
        bins: bins of ``table.matrix``.
        baselines: scores that the trees of each fold are added to.
        settings: seed, threads and tuning budget.
    """

    table: Table
    bins: Bins
    baselines: Baselines
    settings: TrainSettings

    @classmethod
    def prepare(cls, table: Table, settings: TrainSettings, base: BaseModel | None = None) -> Self:
        """Bin the features of `table` and set up its baselines; `base` is the model to continue, if any."""
        bins = Bins(table.matrix, table.features.names, settings.model.max_bin, settings.threads)
        return cls(table, bins, Baselines(table, settings.model, settings.seed, base), settings)

    @property
    def fit(self) -> Fit:
        """Seed and threads of every booster."""
        return Fit(self.settings.seed, self.settings.threads)


@dataclass(frozen=True)
class CrossValidation:
    """Out-of-fold predictions and their metrics.

    Attributes:
        out_of_fold: the predictions.
        folds: metrics per fold.
        metrics: metrics over all tested problems.
        grown: out-of-fold efficiency, of shape (problems,), by number of trees, at several points and at the end;
            NaN for problems that are not tested.
    """

    out_of_fold: OutOfFold
    folds: tuple[FoldResult, ...]
    metrics: dict[str, float]
    grown: dict[int, Floats]


def make_folds(table: Table, n_splits: int, seed: int) -> tuple[Fold, ...]:
    """Return `n_splits` folds of groups, shuffled by `seed`; each tests those of its problems that can be judged.

    Raises:
        DataError: there are fewer groups than folds.
    """
    n_groups = int(table.group.max()) + 1
    if n_groups < n_splits:
        raise DataError(f"{n_groups} distinct split keys cannot make {n_splits} folds; measure more, or lower n_splits")
    splitter = GroupKFold(n_splits, shuffle=True, random_state=seed)
    return tuple(
        Fold(train.astype(np.int64), test[table.judges[test]].astype(np.int64))
        for train, test in splitter.split(table.group, groups=table.group)
    )


def cross_validate(
    data: TrainingData,
    folds: Sequence[Fold],
    model: ModelSettings,
    on_fold: Callable[[FoldResult], None] | None = None,
) -> CrossValidation:
    """Predict each tested row by the fold that did not train on its group.

    Args:
        data: the prepared table.
        folds: from :func:`make_folds`.
        model: settings of the trees.
        on_fold: called with the result of each fold when it is done.
    """
    table = data.table
    scale = _ScaleFolds(data) if model.label == "relative" else None
    score, log_best = np.empty(len(table.problem)), np.empty(len(table.problems))
    grown: defaultdict[int, Floats] = defaultdict(lambda: np.full(len(table.problems), np.nan))
    results, every = [], max(1, model.n_estimators // CURVE_POINTS)
    for number, fold in enumerate(folds):
        rows = table.rows_of(fold.test)
        for growth in fold_growth(data, fold, model, every=every):
            score[rows] = growth.scores
            grown[growth.n_trees][fold.test] = selections_by_score(table, rows, growth.scores).efficiency
        if scale:
            log_best[fold.test] = scale.predict(fold)
        chosen = selections_by_score(table, rows, score[rows])
        predicted = _tflops(table, model, score, log_best, rows)
        results.append(FoldResult(number, summarise(chosen, table.tflops[rows], predicted)))
        if on_fold:
            on_fold(results[-1])
    rows = table.rows_of(tested_problems(folds))
    tested, predicted = table.take(rows), _tflops(table, model, score, log_best, rows)
    chosen = selections_by_score(table, rows, score[rows])
    out_of_fold = OutOfFold(tested.problem, tested.kernel, tested.tflops, predicted, chosen.efficiency)
    return CrossValidation(out_of_fold, tuple(results), summarise(chosen, tested.tflops, predicted), dict(grown))


def tested_problems(folds: Sequence[Fold]) -> Ints:
    """Return the problems that any fold tests, ascending."""
    return np.sort(np.concatenate([fold.test for fold in folds]))


def fold_score(data: TrainingData, fold: Fold, model: ModelSettings) -> Floats:
    """Return the scores of the fold's test rows by trees that were grown on its training rows."""
    *_, last = fold_growth(data, fold, model, every=model.n_estimators)
    return last.scores


def fold_growth(data: TrainingData, fold: Fold, model: ModelSettings, *, every: int) -> Iterator[Growth]:
    """Yield the ranking scores of the fold's test rows after each `every` trees and after the last."""
    table, baselines = data.table, data.baselines
    train, test = baselines.training_rows(fold.train), table.rows_of(fold.test)
    labels = make_labels(table, model, baselines.of(fold.train).scores)
    for growth in data.bins.grow(model, labels, train, test, data.fit, every=every):
        yield growth._replace(scores=baselines.ranking(fold.train, test, growth.scores))


def selections_by_score(table: Table, rows: Ints, score: Floats) -> Selections:
    """Return the selections by `score` among `rows`, which hold whole problems."""
    return select(renumbered(table.problem[rows]), table.tflops[rows], score)


def _tflops(table: Table, model: ModelSettings, score: Floats, log_best: Floats, rows: Ints) -> Floats:
    relative = model.label == "relative"
    return to_tflops(model.label, score[rows], log_best[table.problem[rows]] if relative else None)


class _ScaleFolds:
    """The model of a problem's best TFLOPS, fold by fold."""

    def __init__(self, data: TrainingData) -> None:
        self._bins = scale_bins(data.table, data.settings.threads)
        self._labels = Labels(np.log(data.table.best), None)
        self._fit = data.fit

    def predict(self, fold: Fold) -> Floats:
        """Return log(best TFLOPS) of each test problem."""
        return self._bins.fit_predict(SCALE_SETTINGS, self._labels, fold.train, fold.test, self._fit)


def scale_bins(table: Table, threads: int) -> Bins:
    """Return bins of the problem features."""
    return Bins(table.problem_matrix, table.features.of_role("problem").names, SCALE_SETTINGS.max_bin, threads)

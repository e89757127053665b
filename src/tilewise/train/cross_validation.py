"""Grouped cross-validation: problems that share a group key never stand on both sides of a fold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from sklearn.model_selection import GroupKFold

from tilewise.errors import DataError
from tilewise.metrics import Selections, select, summarise
from tilewise.train.baseline import Baselines
from tilewise.train.boosting import SCALE_SETTINGS, Bins, Growth
from tilewise.train.dataset import Floats, Ints, Table, numbered
from tilewise.train.labels import Labels, labels, to_tflops
from tilewise.train.result import FoldRecord, OutOfFold
from tilewise.train.settings import ModelSettings, TrainSettings

# How often a fold's selections are looked at while its trees grow: for a curve, not for a decision.
LOOKS = 8


@dataclass(frozen=True)
class Fold:
    """Problems to train on and to test on, as ascending indices into :attr:`Table.problems`."""

    train: Ints
    test: Ints


@dataclass(frozen=True)
class CrossValidation:
    """Out-of-fold predictions and what they amount to.

    Attributes:
        out_of_fold: the predictions.
        folds: metrics of each.
        metrics: over all problems that were tested on.
        grown: (problems,) out-of-fold efficiency by the number of trees, a few times while they grew and at the end;
            NaN where it cannot be judged.
    """

    out_of_fold: OutOfFold
    folds: tuple[FoldRecord, ...]
    metrics: dict[str, float]
    grown: dict[int, Floats]


def make_folds(table: Table, n_splits: int, seed: int) -> tuple[Fold, ...]:
    """`n_splits` folds of groups, shuffled by `seed`; each tests what of its problems a selection can be judged on.

    Raises:
        DataError: there are fewer groups than folds.
    """
    n_groups = int(table.group.max()) + 1
    if n_groups < n_splits:
        raise DataError(f"{n_groups} distinct group keys cannot make {n_splits} folds; measure more, or lower n_splits")
    splitter = GroupKFold(n_splits, shuffle=True, random_state=seed)
    return tuple(
        Fold(train.astype(np.int64), test[table.judges[test]].astype(np.int64))
        for train, test in splitter.split(table.group, groups=table.group)
    )


def cross_validate(
    table: Table,
    bins: Bins,
    baselines: Baselines,
    folds: tuple[Fold, ...],
    model: ModelSettings,
    settings: TrainSettings,
    on_fold: Callable[[FoldRecord], None] | None = None,
) -> CrossValidation:
    """Predict every row that is tested on by the fold that did not see its group.

    Args:
        table: the rows.
        bins: of ``table.matrix``.
        baselines: of `table`.
        folds: from :func:`make_folds`.
        model: how trees grow.
        settings: seed and threads.
        on_fold: told of each fold as it is done.
    """
    scale = _ScaleFolds(table, settings) if model.label == "relative" else None
    score, log_best = np.empty(len(table.problem)), np.empty(len(table.problems))
    grown: defaultdict[int, Floats] = defaultdict(lambda: np.full(len(table.problems), np.nan))
    records, every = [], max(1, model.n_estimators // LOOKS)
    for number, fold in enumerate(folds):
        rows = table.rows_of(fold.test)
        for growth in fold_growth(table, bins, baselines, fold, model, settings, every=every):
            score[rows] = growth.scores
            grown[growth.n_trees][fold.test] = judge(table, rows, growth.scores).efficiency
        if scale:
            log_best[fold.test] = scale.predict(fold)
        predicted = _tflops(table, model, score, log_best, rows)
        records.append(FoldRecord(number, summarise(judge(table, rows, score[rows]), table.tflops[rows], predicted)))
        if on_fold:
            on_fold(records[-1])
    rows = table.rows_of(tested(folds))
    seen, predicted = table.take(rows), _tflops(table, model, score, log_best, rows)
    chosen = judge(table, rows, score[rows])
    out_of_fold = OutOfFold(seen.problem, seen.kernel, seen.tflops, predicted, chosen.efficiency)
    return CrossValidation(out_of_fold, tuple(records), summarise(chosen, seen.tflops, predicted), dict(grown))


def tested(folds: Sequence[Fold]) -> Ints:
    """The problems that some fold tests on, ascending."""
    return np.sort(np.concatenate([fold.test for fold in folds]))


def fold_score(
    table: Table, bins: Bins, baselines: Baselines, fold: Fold, model: ModelSettings, settings: TrainSettings
) -> Floats:
    """Scores of the fold's test rows by trees that its training rows grew."""
    *_, last = fold_growth(table, bins, baselines, fold, model, settings, every=model.n_estimators)
    return last.scores


def fold_growth(
    table: Table,
    bins: Bins,
    baselines: Baselines,
    fold: Fold,
    model: ModelSettings,
    settings: TrainSettings,
    *,
    every: int,
) -> Iterator[Growth]:
    """Scores by which the fold's test rows are ranked, after each `every` trees and after the last."""
    train, test = baselines.rows_to_learn(fold.train), table.rows_of(fold.test)
    learnt = labels(table, model, baselines.of(fold.train).scores)
    for growth in bins.grow(model, learnt, train, test, settings.seed, settings.threads, every=every):
        yield growth._replace(scores=baselines.ranking(fold.train, test, growth.scores))


def judge(table: Table, rows: Ints, score: Floats) -> Selections:
    """The selections by `score` among these rows of whole problems."""
    return select(numbered(table.problem[rows]), table.tflops[rows], score)


def _tflops(table: Table, model: ModelSettings, score: Floats, log_best: Floats, rows: Ints) -> Floats:
    relative = model.label == "relative"
    return to_tflops(model.label, score[rows], log_best[table.problem[rows]] if relative else None)


class _ScaleFolds:
    """The model of a problem's best TFLOPS, fold by fold."""

    def __init__(self, table: Table, settings: TrainSettings) -> None:
        self._bins = scale_bins(table, settings.threads)
        self._labels = Labels(np.log(table.best), None)
        self._settings = settings

    def predict(self, fold: Fold) -> Floats:
        """(problems to test,) log(best TFLOPS)."""
        return self._bins.fit_predict(
            SCALE_SETTINGS, self._labels, fold.train, fold.test, self._settings.seed, self._settings.threads
        )


def scale_bins(table: Table, threads: int) -> Bins:
    """Bins of the problem features."""
    return Bins(table.problem_matrix, table.features.of_role("problem").names, SCALE_SETTINGS.max_bin, threads)

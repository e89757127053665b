"""Grouped cross-validation: problems that share a split key never lie on both sides of a fold."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, Self

import lightgbm as lgb
import numpy as np
from sklearn.model_selection import GroupKFold

from tilewise.cluster import LOCAL, Executor
from tilewise.errors import DataError
from tilewise.metrics import Selections, select, summarise
from tilewise.model import SCALED_LABELS
from tilewise.train._boosting import Bins, Fit, Growth, scale_settings
from tilewise.train._dataset import Floats, Ints, Table, renumbered
from tilewise.train._settings import ModelSettings, TrainSettings
from tilewise.train._training_labels import Labels, make_labels, to_tflops
from tilewise.train._training_result import FoldResult, OutOfFold
from tilewise.train.cost_model import Baselines
from tilewise.train.hosts import Learning, grow_model

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
        bins: bins of the table's features.
        baselines: scores that the trees of each fold are added to.
        settings: seed, threads and tuning budget.
    """

    table: Table
    bins: Bins
    baselines: Baselines
    settings: TrainSettings

    @classmethod
    def prepare(cls, table: Table, settings: TrainSettings, baselines: Baselines | None = None) -> Self:
        """Bin the features of `table`; `baselines` are those of its rows, set up here for None."""
        settings = settings.sized_for(len(table.problem))
        bins = Bins(table.feature_rows, table.features.names, settings.model.max_bin, settings.threads)
        return cls(table, bins, baselines or Baselines(table, settings.model, settings.seed), settings)

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
        log_scale: log(TFLOPS) of each problem's selection less its score, of shape (problems,); NaN for problems that
            are not tested.
        grown: out-of-fold efficiency, of shape (problems,), by number of trees, at several points and at the end;
            NaN for problems that are not tested.
    """

    out_of_fold: OutOfFold
    folds: tuple[FoldResult, ...]
    metrics: dict[str, float]
    log_scale: Floats
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


class _FoldRun(NamedTuple):
    """The outcome of one fold.

    Attributes:
        result: its metrics.
        score: final score of each test row.
        log_scale: log(TFLOPS) of each test problem's selection less its score.
        grown: efficiency on each test problem by number of trees.
    """

    result: FoldResult
    score: Floats
    log_scale: Floats
    grown: dict[int, Floats]


class FoldTrees:
    """The trees of one fold. They grow as far as asked and grow on when more are asked for: none is grown twice.

    What the cross-validation reports of them is noted on the way, and they are let go once that is complete.

    Args:
        data: the prepared table.
        fold: one of its folds.
        model: settings of the trees.
        every: number of trees between those that can be asked about.
        most: number of trees that can be asked about, where it is larger than that of `model`.
        executor: where several processes learn the model together.
    """

    def __init__(
        self,
        data: TrainingData,
        fold: Fold,
        model: ModelSettings,
        *,
        every: int = 1,
        most: int = 0,
        executor: Executor = LOCAL,
    ) -> None:
        table, baselines = data.table, data.baselines
        self._table, self._rows, self._n_trees = table, table.measured_rows_of(fold.test), model.n_estimators
        self._ranking = baselines.ranking(fold.train, self._rows)
        labels = make_labels(table, model, baselines.of(fold.train).scores)
        most_trees = replace(model, n_estimators=max(most, model.n_estimators))
        train, test = baselines.training_rows(fold.train), self._ranking.listed_rows  # others need no tree to be ranked
        learning = Learning(table, most_trees, data.fit, labels, train, test)
        self._growth = grow_model(executor, data.bins, learning, every=every)
        self._last: Growth | None = None
        self._efficiency: dict[int, Floats] = {}
        self._scores: Floats | None = None

    @property
    def booster(self) -> lgb.Booster:
        """The trees grown so far."""
        assert self._last is not None
        return self._last.booster

    def efficiency(self, n_trees: int) -> Floats:
        """Return the efficiency of the selections after `n_trees` trees, of shape (test problems,).

        Numbers must ascend, except for :func:`curve_steps`, which are noted when passed.
        """
        noted = (n_trees, *curve_steps(self._n_trees))
        while n_trees not in self._efficiency:
            self._last = next(self._growth)
            if self._last.n_trees in noted:
                self._note(self._last)
        return self._efficiency[n_trees]

    def scores(self) -> Floats:
        """Return the scores of the test rows by all trees of the model."""
        self.efficiency(self._n_trees)
        assert self._scores is not None
        return self._scores

    def run(self, number: int) -> _FoldRun:
        """Return the outcome of the fold of this number, and let the trees go."""
        table, rows = self._table, self._rows
        grown = {n: self.efficiency(n) for n in curve_steps(self._n_trees)}
        score, self._growth, self._last = self.scores(), iter(()), None
        chosen = selections_by_score(table, rows, score)
        log_scale = np.log(table.tflops[rows[chosen.selected]]) - score[chosen.selected]
        return _FoldRun(FoldResult(number, summarise(chosen, table.tflops[rows])), score, log_scale, grown)

    def _note(self, growth: Growth) -> None:
        scores = self._ranking.scores(growth.scores)
        self._efficiency[growth.n_trees] = selections_by_score(self._table, self._rows, scores).efficiency
        if growth.n_trees == self._n_trees:
            self._scores = scores


def steps(n_trees: int, every: int) -> tuple[int, ...]:
    """Return each multiple of `every` below `n_trees`, and `n_trees`."""
    return (*range(every, n_trees, every), n_trees)


def curve_steps(n_trees: int) -> tuple[int, ...]:
    """Return the numbers of trees at which the cross-validation of a model of `n_trees` trees judges it."""
    return steps(n_trees, max(1, n_trees // CURVE_POINTS))


def cross_validate(
    data: TrainingData,
    folds: Sequence[Fold],
    model: ModelSettings,
    on_fold: Callable[[FoldResult], None] | None = None,
    executor: Executor = LOCAL,
    grown: Sequence[FoldTrees] = (),
) -> CrossValidation:
    """Predict each tested row by the fold that did not train on its group.

    Args:
        data: the prepared table.
        folds: from :func:`make_folds`.
        model: settings of the trees.
        on_fold: called with the result of each fold when it is done.
        executor: runs the folds, or the processes that learn each of them together.
        grown: trees of the first folds with these settings, which grow on where folds run in this process.
    """
    table, together = data.table, executor.machines > 1
    score, log_scale = np.empty(len(table.problem)), np.full(len(table.problems), np.nan)
    by_trees: defaultdict[int, Floats] = defaultdict(lambda: np.full(len(table.problems), np.nan))
    report = (lambda run: on_fold(run.result)) if on_fold else None
    shared = (data, model, executor if together else LOCAL)
    known = dict(enumerate(grown if executor.is_local else ()))
    tasks = [(number, fold, known.get(number)) for number, fold in enumerate(folds)]
    runs = (LOCAL if together else executor).map(_run_fold, shared, tasks, report)
    for fold, run in zip(folds, runs, strict=True):
        score[table.measured_rows_of(fold.test)], log_scale[fold.test] = run.score, run.log_scale
        for n_trees, efficiency in run.grown.items():
            by_trees[n_trees][fold.test] = efficiency
    rows = table.measured_rows_of(tested_problems(folds))
    tested, scales = table.take(rows), _predicted_scales(data, folds, model.label, log_scale)
    predicted = to_tflops(model.label, score[rows], scales[table.problem[rows]])
    chosen = selections_by_score(table, rows, score[rows])
    problem, kernel = (numbers.astype(np.int64) for numbers in (tested.problem, tested.kernel))
    out_of_fold = OutOfFold(problem, kernel, tested.tflops, predicted, chosen.efficiency)
    metrics = summarise(chosen, tested.tflops, predicted)
    return CrossValidation(out_of_fold, tuple(run.result for run in runs), metrics, log_scale, dict(by_trees))


def _run_fold(
    shared: tuple[TrainingData, ModelSettings, Executor], task: tuple[int, Fold, FoldTrees | None]
) -> _FoldRun:
    (data, model, executor), (number, fold, trees) = shared, task
    every = curve_steps(model.n_estimators)[0]
    return (trees or FoldTrees(data, fold, model, every=every, executor=executor)).run(number)


def tested_problems(folds: Sequence[Fold]) -> Ints:
    """Return the problems that any fold tests, ascending."""
    return np.sort(np.concatenate([fold.test for fold in folds]))


def fold_score(data: TrainingData, fold: Fold, model: ModelSettings) -> Floats:
    """Return the scores of the fold's test rows by trees that were grown on its training rows."""
    return FoldTrees(data, fold, model, every=model.n_estimators).scores()


def selections_by_score(table: Table, rows: Ints, score: Floats) -> Selections:
    """Return the selections by `score` among `rows`, which hold whole problems."""
    return select(renumbered(table.problem[rows]), table.tflops[rows], score)


def scale_bins(table: Table, threads: int) -> Bins:
    """Return bins of the problem features."""
    return Bins(table.problem_matrix, table.features.of_role("problem").names, ModelSettings().max_bin, threads)


def _predicted_scales(data: TrainingData, folds: Sequence[Fold], label: str, log_scale: Floats) -> Floats:
    """Return the scale of each tested problem, learnt from the problems that other folds test, of shape (problems,).

    It is learnt from out-of-fold scores: trees know the level of the problems that they learnt from too well. 0 for
    labels without a scale.
    """
    scales = np.zeros(len(log_scale))
    if label in SCALED_LABELS:
        bins, tested = scale_bins(data.table, data.settings.threads), tested_problems(folds)
        for fold in folds:
            others = np.setdiff1d(tested, fold.test)
            labels = Labels(log_scale, None)
            settings = scale_settings(label, len(others))
            scales[fold.test] = bins.fit_predict(settings, labels, others, fold.test, data.fit)
    return scales

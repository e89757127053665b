"""Baselines: the scores that trees are added to, and the shortlist of kernels that trees learn from and rank.

A baseline is zero, the calibrated cost model's rate of each row, or the score of a continued model. Trees that correct
a cost model must not learn from rows that it was calibrated on: its errors are smaller there than on new problems. So
each training row gets the prediction of a calibration that left its problem out (cross-fitting).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import pairwise
from threading import Lock, Semaphore
from typing import NamedTuple, ParamSpec, TypeVar

import numpy as np

from tilewise._ahead import begin
from tilewise.data import Bools
from tilewise.features import CostModel
from tilewise.model import COST_MODEL_LABELS, put_behind, shortlisted
from tilewise.train._dataset import Floats, Ints, Table, renumbered
from tilewise.train._settings import ModelSettings
from tilewise.train._warm_start import BaseModel
from tilewise.train.cost_model._calibrate import calibrate, one_thread_each

P = ParamSpec("P")
T = TypeVar("T")

CROSS_FITS = 4
MOST_CALIBRATED = 2_000_000  # rows: dozens for each weight, and 2 KB of memory each
_BATCH_ROWS = 1 << 16


class Baseline(NamedTuple):
    """The baseline of all rows for one choice of training problems.

    Attributes:
        cost_model: calibrated on these problems; None for labels without one.
        rates: its log(TFLOPS) of each row, of shape (rows,); None for labels without a cost model.
        scores: scores that the trees are added to, of shape (rows,): `rates`, the scores of the continued model, or 0.
    """

    cost_model: CostModel | None
    rates: Floats | None
    scores: Floats


@dataclass(frozen=True)
class Ranking:
    """The ranking of some rows by a model, which needs trees for the shortlisted ones alone; arrays of shape (rows,).

    Attributes:
        rows: ascending rows of whole problems.
        problem: number of each row's problem, from 0 without gaps.
        listed: whether the row is shortlisted; all are where there is no shortlist.
        rates: log(TFLOPS) by the cost model; None where there is no shortlist.
        baseline: scores that the trees are added to.
    """

    rows: Ints
    problem: Ints
    listed: Bools
    rates: Floats | None
    baseline: Floats

    @property
    def listed_rows(self) -> Ints:
        """The rows that trees rank, ascending."""
        return self.rows[self.listed]

    def scores(self, added: Floats) -> Floats:
        """Return the scores of all rows, of shape (rows,).

        Args:
            added: sum of the trees for each of :attr:`listed_rows`, in their order.
        """
        scores = self.baseline.copy()
        scores[self.listed] += added
        return scores if self.rates is None else put_behind(self.problem, self.rates, scores, self.listed)


class _Ahead:
    """Calibrations in threads of their own, one at a time; after each, that of the expected choice begins.

    Attributes:
        following: the choice of problems that follows another one, by the bytes of that.
    """

    def __init__(self) -> None:
        self.following: dict[bytes, Ints] = {}
        self._begun: dict[bytes, Future[Baseline]] = {}
        self._turn = Lock()

    def __reduce__(self) -> tuple[type, tuple[object, ...]]:
        """Begin with nothing in another process."""
        return _Ahead, ()

    def result(self, calibrate: Callable[[Ints], Baseline], problems: Ints) -> Baseline:
        """Return the calibration on `problems`, and begin the following one."""
        found = self._begin(calibrate, problems).result()
        del self._begun[problems.tobytes()]
        if problems.tobytes() in self.following:
            self._begin(calibrate, self.following.pop(problems.tobytes()))
        return found

    def _begin(self, calibrate: Callable[[Ints], Baseline], problems: Ints) -> Future[Baseline]:
        key = problems.tobytes()
        if key not in self._begun:
            self._begun[key] = begin(_in_turn, self._turn, calibrate, problems)
        return self._begun[key]


class Baselines:
    """The baseline of each choice of training problems, computed once per choice. Not thread-safe."""

    def __init__(self, table: Table, settings: ModelSettings, seed: int, base: BaseModel | None = None) -> None:
        self._table = table
        self._base = Baseline(base.model.cost_model, base.log_rates(table), base.scores(table)) if base else None
        self._calibrated = settings.label in COST_MODEL_LABELS
        self._shortlist = settings.shortlist
        self._label_floor = settings.label_floor
        self._weight = table.weights(settings.teacher_weight)
        order = np.random.default_rng(seed).permutation(int(table.group.max()) + 1)
        self._part = (order % CROSS_FITS)[table.group]
        self._done: dict[bytes, Baseline] = {}
        self._ahead = _Ahead()

    def expect(self, choices: Sequence[Ints]) -> None:
        """Compute each choice's baseline while trees grow from that of the choice before."""
        unknown = [problems for problems in choices if problems.tobytes() not in self._done]
        self._ahead.following = {one.tobytes(): other for one, other in pairwise(unknown)}

    def of(self, problems: Ints) -> Baseline:
        """Return the baseline of a model trained on `problems`."""
        if self._base:
            return self._base
        key = problems.tobytes()
        if key not in self._done and self._calibrated:
            self._done[key] = self._ahead.result(self._calibrate, problems)
        elif key not in self._done:
            self._done[key] = Baseline(None, None, np.zeros(len(self._table.problem)))
        return self._done[key]

    def of_all(self) -> Baseline:
        """Return the baseline of a model trained on all problems: that of the final model."""
        return self.of(np.arange(len(self._table.problems)))

    def training_rows(self, problems: Ints) -> Ints:
        """Return the ascending row indices used for training: those of the problems' shortlisted kernels."""
        return self.ranking(problems, self._table.rows_of(problems)).listed_rows

    def ranking(self, problems: Ints, rows: Ints) -> Ranking:
        """Return the ranking of `rows`, ascending rows of whole problems, by a model trained on `problems`."""
        baseline, problem = self.of(problems), renumbered(self._table.problem[rows])
        rates = None if baseline.rates is None or not self._shortlist else baseline.rates[rows]
        listed = np.ones(len(rows), bool) if rates is None else shortlisted(problem, rates, self._shortlist)
        return Ranking(rows, problem, listed, rates, baseline.scores[rows])

    def _calibrate(self, problems: Ints) -> Baseline:
        """Calibrate on the problems, and on all but each part of them, side by side as cores and memory allow."""
        table, parts = self._table, self._part[problems]
        left_out = [parts == part for part in np.unique(parts)]
        turn = Semaphore(max(1, min(os.cpu_count() or 1, MOST_CALIBRATED // len(table.rows_of(problems)))))
        with one_thread_each():
            fitted = begin(_in_turn, turn, self._fit, problems)
            crossed = [begin(_in_turn, turn, self._cross_fit, problems, out) for out in left_out if not out.all()]
            rates, is_left = np.empty(len(table.problem)), np.ones(len(table.problem), dtype=bool)
            for rows, values in (result.result() for result in crossed):
                rates[rows], is_left[rows] = values, False
            whole = fitted.result()
        rates[is_left] = self._predict(whole, np.flatnonzero(is_left))
        return Baseline(whole, rates, rates)

    def _cross_fit(self, problems: Ints, is_left_out: Bools) -> tuple[Ints, Floats]:
        """Return the rows of the problems left out, and their rates by the others."""
        rows = self._table.rows_of(problems[is_left_out])
        return rows, self._predict(self._fit(problems[~is_left_out]), rows)

    def _fit(self, problems: Ints) -> CostModel:
        """Calibrate on the rows of these problems; on evenly spread ones of them where there are too many rows."""
        rows, table = self._table.rows_of(problems), self._table
        if len(rows) > MOST_CALIBRATED:
            rows = table.rows_of(problems[:: -(-len(rows) // MOST_CALIBRATED)])
        log_clocks = table.work[table.problem[rows]] - np.log(table.tflops[rows])
        weight = np.maximum(table.efficiency[rows], self._label_floor) * self._weight[table.problem[rows]]
        return calibrate(table.terms_of(rows), table.kernel[rows], log_clocks, weight, len(table.pool))

    def _predict(self, cost_model: CostModel, rows: Ints) -> Floats:
        table, rates = self._table, np.empty(len(rows))
        for start in range(0, len(rows), _BATCH_ROWS):
            some = rows[start : start + _BATCH_ROWS]
            clocks = cost_model.log_clocks(table.terms_of(some), table.kernel[some])
            rates[start : start + _BATCH_ROWS] = table.work[table.problem[some]] - clocks
        return rates


def _in_turn(turn: AbstractContextManager[object], function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    with turn:
        return function(*args, **kwargs)

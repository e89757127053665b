"""What scores begin from: nothing, the calibrated estimate of each row's rate, or the model that is continued.

Trees that learn what an estimate leaves must not learn from rows that it was calibrated on: there it leaves less than
it will for new problems. So a row to learn from has the estimate of a calibration that left its problem out.
"""

from __future__ import annotations

import numpy as np

from tilewise.features.estimate import LaunchEstimate
from tilewise.model.labels import ESTIMATED
from tilewise.train.calibrate import calibrate
from tilewise.train.dataset import Floats, Ints, Table
from tilewise.train.settings import ModelSettings
from tilewise.train.warm import Base

CROSS_FITS = 4


class Baselines:
    """The baseline of each choice of training problems, computed once. Not safe to share between threads."""

    def __init__(self, table: Table, settings: ModelSettings, seed: int, base: Base | None = None) -> None:
        self._table = table
        self._base = (base.model.estimate, base.scores(table)) if base else None
        self._calibrated = settings.label in ESTIMATED
        self._weight = np.maximum(table.efficiency, settings.label_floor)
        self._log_rate = np.log(table.tflops)
        order = np.random.default_rng(seed).permutation(int(table.group.max()) + 1)
        self._part = (order % CROSS_FITS)[table.group]
        self._done: dict[bytes, tuple[LaunchEstimate | None, Floats]] = {}

    def of(self, problems: Ints) -> Floats:
        """(rows,) scores to begin from, learnt from these problems; 0 where labels need none."""
        return self._fit(problems)[1]

    def best_rows(self, problems: Ints, most: int) -> Ints:
        """The rows of at most so many kernels of each of these problems, ascending: those of the best baselines.

        All rows where labels need no estimate, as nothing tells kernels apart then.
        """
        rows = self._table.rows_of(problems)
        if not (self._calibrated or self._base):
            return rows
        problem = self._table.problem[rows]
        order = np.lexsort((-self.of(problems)[rows], problem))  # problems stay together, the best of each first
        first = np.searchsorted(problem[order], problem[order])
        return np.sort(rows[order[np.arange(len(rows)) - first < most]])

    def estimate(self) -> LaunchEstimate | None:
        """The estimate learnt from all problems, which goes with the model; None where labels need none."""
        return self._fit(np.arange(len(self._table.problems)))[0]

    def _fit(self, problems: Ints) -> tuple[LaunchEstimate | None, Floats]:
        if self._base:
            return self._base
        key = problems.tobytes()
        if key not in self._done:
            self._done[key] = self._calibrate(problems) if self._calibrated else (None, np.zeros_like(self._log_rate))
        return self._done[key]

    def _calibrate(self, problems: Ints) -> tuple[LaunchEstimate, Floats]:
        whole = self._estimate(problems)
        offset = self._predict(whole, np.arange(len(self._log_rate)))
        parts = self._part[problems]
        for part in np.unique(parts) if len(np.unique(parts)) > 1 else ():
            rows = self._table.rows_of(problems[parts == part])
            offset[rows] = self._predict(self._estimate(problems[parts != part]), rows)
        return whole, offset

    def _estimate(self, problems: Ints) -> LaunchEstimate:
        rows, table = self._table.rows_of(problems), self._table
        log_clocks = (table.log_work - self._log_rate)[rows]
        return calibrate(table.terms.take(rows), table.kernel[rows], log_clocks, self._weight[rows], len(table.pool))

    def _predict(self, estimate: LaunchEstimate, rows: Ints) -> Floats:
        table = self._table
        clocks: Floats = estimate.log_clocks(table.terms.take(rows), table.kernel[rows])
        offset: Floats = table.log_work[rows] - clocks
        return offset

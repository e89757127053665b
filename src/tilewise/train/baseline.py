"""What scores begin from: nothing, the calibrated estimate of each row's rate, or the model that is continued.

And the shortlist that goes with it (:mod:`tilewise.model.shortlist`): which rows trees learn from, and rank.

Trees that learn what an estimate leaves must not learn from rows that it was calibrated on: there it leaves less than
it will for new problems. So a row to learn from has the estimate of a calibration that left its problem out.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from tilewise.features.estimate import LaunchEstimate
from tilewise.model.labels import ESTIMATED
from tilewise.model.shortlist import put_behind, shortlisted
from tilewise.train.calibrate import calibrate
from tilewise.train.dataset import Floats, Ints, Table, numbered
from tilewise.train.settings import ModelSettings
from tilewise.train.warm import Base

CROSS_FITS = 4


class Baseline(NamedTuple):
    """What some problems tell of all rows before any tree grows.

    Attributes:
        estimate: calibrated on these problems; None where labels need none.
        rates: (rows,) log(TFLOPS) by it; None where labels need none.
        scores: (rows,) to begin from: `rates`, what the model that is continued makes of the rows, or 0.
    """

    estimate: LaunchEstimate | None
    rates: Floats | None
    scores: Floats


class Baselines:
    """The baseline of each choice of training problems, computed once. Not safe to share between threads."""

    def __init__(self, table: Table, settings: ModelSettings, seed: int, base: Base | None = None) -> None:
        self._table = table
        self._base = Baseline(base.model.estimate, base.log_rates(table), base.scores(table)) if base else None
        self._calibrated = settings.label in ESTIMATED
        self._shortlist = settings.shortlist
        self._weight = np.maximum(table.efficiency, settings.label_floor)
        self._log_rate = np.log(table.tflops)
        order = np.random.default_rng(seed).permutation(int(table.group.max()) + 1)
        self._part = (order % CROSS_FITS)[table.group]
        self._done: dict[bytes, Baseline] = {}

    def of(self, problems: Ints) -> Baseline:
        """What these problems tell."""
        if self._base:
            return self._base
        key = problems.tobytes()
        if key not in self._done:
            nothing = Baseline(None, None, np.zeros_like(self._log_rate))
            self._done[key] = self._calibrate(problems) if self._calibrated else nothing
        return self._done[key]

    def of_all(self) -> Baseline:
        """What all problems tell: that of the model."""
        return self.of(np.arange(len(self._table.problems)))

    def rows_to_learn(self, problems: Ints) -> Ints:
        """The rows of these problems that trees learn from, ascending: of the shortlists that themselves tell."""
        rows, rates = self._table.rows_of(problems), self.of(problems).rates
        if rates is None or not self._shortlist:
            return rows
        return rows[shortlisted(self._table.problem[rows], rates[rows], self._shortlist)]

    def ranking(self, problems: Ints, rows: Ints, added: Floats) -> Floats:
        """Scores by which a model that learnt from `problems` ranks `rows` of whole problems.

        Args:
            problems: that it learnt from.
            rows: ascending.
            added: (len(rows),) what its trees say.
        """
        known = self.of(problems)
        scores: Floats = known.scores[rows] + added
        if known.rates is None or not self._shortlist:
            return scores
        return put_behind(numbered(self._table.problem[rows]), known.rates[rows], scores, self._shortlist)

    def _calibrate(self, problems: Ints) -> Baseline:
        whole = self._estimate(problems)
        rates = self._predict(whole, np.arange(len(self._log_rate)))
        parts = self._part[problems]
        for part in np.unique(parts) if len(np.unique(parts)) > 1 else ():
            rows = self._table.rows_of(problems[parts == part])
            rates[rows] = self._predict(self._estimate(problems[parts != part]), rows)
        return Baseline(whole, rates, rates)

    def _estimate(self, problems: Ints) -> LaunchEstimate:
        rows, table = self._table.rows_of(problems), self._table
        log_clocks = (table.log_work - self._log_rate)[rows]
        return calibrate(table.terms.take(rows), table.kernel[rows], log_clocks, self._weight[rows], len(table.pool))

    def _predict(self, estimate: LaunchEstimate, rows: Ints) -> Floats:
        table = self._table
        clocks: Floats = estimate.log_clocks(table.terms.take(rows), table.kernel[rows])
        offset: Floats = table.log_work[rows] - clocks
        return offset

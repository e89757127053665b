"""Replay of measuring strategies on a recorded table: efficiency on held-back problems by number of measurements.

Three strategies are compared on the same problems: ``random`` pairs, ``uniform`` (random problems with the whole pool),
and ``planned`` in rounds, as ``tilewise plan`` does.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from tilewise.campaigns.plan import (
    COMMITTEE_SETTINGS,
    Committee,
    KernelChoice,
    Member,
    Pairs,
    choose_kernels,
    disagreement,
    order_problems,
)
from tilewise.data import Bools
from tilewise.errors import DataError
from tilewise.metrics import Floats, Ints, Selections, select
from tilewise.train import ModelSettings, Table

# Rounds of planning, as (share of the problems, share of each one's kernels): the better the committee, the more
# problems and the fewer kernels. The first round has no committee and draws. Together they take a quarter of the pairs.
ROUNDS = ((0.06, 0.33), (0.08, 0.3), (0.12, 0.25), (0.24, 0.25), (0.5, 0.22))
SHARES = (0.02, 0.05, 0.1, 0.25, 0.5, 1.0)  # of the pairs, for the other strategies


def recorded_pairs(table: Table, rows: Ints) -> Pairs:
    """Return the pairs of some ascending rows of a table, without their measurements."""
    matrix = table.launches.matrix(table.features, rows)
    problem, kernel = (numbers[rows].astype(np.int64) for numbers in (table.problem, table.kernel))
    return Pairs(problem, kernel, matrix, table.terms_of(rows), table.log_work[rows])


@dataclass(frozen=True)
class Point:
    """One point of a learning curve; efficiencies in (0, 1], on held-back problems.

    Attributes:
        strategy: ``random``, ``uniform`` or ``planned``.
        seed: seed of the split, the choice and the trees.
        measurements: pairs measured so far.
        share: of all measurable pairs.
        problems: problems with a measurement.
        mean_efficiency, p10_efficiency, top3_p10_efficiency: of the selections, and of the best of three measured.
    """

    strategy: str
    seed: int
    measurements: int
    share: float
    problems: int
    mean_efficiency: float
    p10_efficiency: float
    top3_p10_efficiency: float


@dataclass(frozen=True)
class Replay:
    """A recorded table in place of a GPU: some problems can be measured, the others judge.

    Attributes:
        table: the recorded table.
        judges: whether a problem judges, of shape (problems,); its group is shared with no measurable problem.
        model: settings of the models.
        members: size of the committee.
        seed, threads: of the trees.

    Raises:
        DataError: there are too few problems to split.
    """

    table: Table
    judges: Bools
    model: ModelSettings
    members: int
    seed: int
    threads: int

    def __post_init__(self) -> None:
        if not 0 < self.judges.sum() < len(self.judges) - 1:
            raise DataError(f"{len(self.judges)} problems are too few for a learning curve")

    @classmethod
    def split(
        cls,
        table: Table,
        seed: int,
        *,
        share: float = 0.25,
        model: ModelSettings = COMMITTEE_SETTINGS,
        members: int = 3,
        threads: int = 0,
    ) -> Replay:
        """Return a replay in which `share` of the groups judge, drawn by `seed`."""
        groups = int(table.group.max()) + 1
        apart = np.zeros(groups, dtype=bool)
        apart[np.random.default_rng(seed).permutation(groups)[: round(share * groups)]] = True
        return cls(table, apart[table.group], replace(model, label="residual"), members, seed, threads)

    @property
    def measurable(self) -> Ints:
        """Rows that can be measured, ascending."""
        return np.flatnonzero(~self.judges[self.table.problem])

    def random(self, shares: Sequence[float] = SHARES) -> Iterator[Point]:
        """Yield the curve of pairs drawn at random."""
        rows = np.random.default_rng([self.seed, 1]).permutation(self.measurable)
        for share in shares:
            yield self._judge("random", rows[: max(round(share * len(rows)), 2)])

    def uniform(self, shares: Sequence[float] = SHARES) -> Iterator[Point]:
        """Yield the curve of problems drawn at random, each with all its kernels."""
        problems = np.random.default_rng([self.seed, 2]).permutation(np.flatnonzero(~self.judges))
        for share in shares:
            yield self._judge("uniform", self.table.rows_of(problems[: max(round(share * len(problems)), 2)]))

    def planned(
        self, rounds: Sequence[tuple[float, float]] = ROUNDS, choice: KernelChoice | None = None
    ) -> Iterator[Point]:
        """Yield the curve of planned rounds: a committee trained on earlier rounds chooses problems and kernels."""
        rng = np.random.default_rng([self.seed, 3])
        left = rng.permutation(np.flatnonzero(~self.judges))
        total, rows = len(left), np.zeros(0, dtype=np.int64)
        choice = choice or KernelChoice()
        for number, (of_problems, of_kernels) in enumerate(rounds):
            count = len(left) if number == len(rounds) - 1 else max(round(of_problems * total), 2)
            chosen, new = self._round(rows, left, count, replace(choice, share=of_kernels), rng)
            rows, left = np.concatenate([rows, new]), left[~np.isin(left, chosen)]
            yield self._judge("planned", rows)

    def _round(
        self, rows: Ints, left: Ints, count: int, choice: KernelChoice, rng: np.random.Generator
    ) -> tuple[Ints, Ints]:
        """Return the problems to measure next, and their chosen rows."""
        keys = np.array([p.group_key for p in self.table.problems], dtype=np.int64)
        known, ascending = np.unique(self.table.problem[rows]), np.sort(left)
        candidates = self.table.rows_of(ascending)
        number = np.searchsorted(ascending, self.table.problem[candidates])
        score, regret = np.zeros(len(candidates)), np.ones(len(left))
        if len(rows):
            committee = Committee.fit(self.table.take(np.sort(rows)), self.members, self.seed, self.threads, self.model)
            scores = committee.score(recorded_pairs(self.table, candidates))
            score, regret = scores.mean(axis=0), disagreement(number, scores)[np.searchsorted(ascending, left)]
        order = order_problems(keys[left], keys[known], regret, np.ones(len(left)))
        chosen = left[order[:count]]
        kept = np.isin(self.table.problem[candidates], chosen)
        problem = np.unique(number[kept], return_inverse=True)[1].astype(np.int64)
        return chosen, candidates[kept][choose_kernels(problem, score[kept], choice, rng)]

    def _judge(self, strategy: str, rows: Ints) -> Point:
        learnt, judged = self.table.take(np.sort(rows)), np.flatnonzero(self.judges[self.table.problem])
        score = Member.fit(learnt, self.model, self.seed, self.threads).score(
            recorded_pairs(self.table, judged), self.threads
        )
        chosen = selections(self.table, judged, score)
        return Point(
            strategy,
            self.seed,
            len(rows),
            len(rows) / len(self.measurable),
            len(learnt.problems),
            float(chosen.efficiency.mean()),
            float(np.percentile(chosen.efficiency, 10)),
            float(np.percentile(chosen.top3_efficiency, 10)),
        )


def selections(table: Table, rows: Ints, score: Floats) -> Selections:
    """Return the selections by the scores of some ascending rows of a table, for the problems that have any."""
    number = np.unique(table.problem[rows], return_inverse=True)[1].astype(np.int64)
    return select(number, table.tflops[rows], score)

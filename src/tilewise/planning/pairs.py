"""(problem, kernel) pairs that nobody has measured yet, as a committee sees them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.features import FeatureTable
from tilewise.features.estimate import Terms, log_work, terms_of
from tilewise.kernels.pool import Pool
from tilewise.metrics import Floats, Ints
from tilewise.ops import OPS, Problem, Target
from tilewise.train.dataset import Table

CHUNK = 128  # problems whose features are in memory at once


@dataclass(frozen=True)
class Pairs:
    """Rows to be scored, problem by problem and, within one, in the pool's order.

    Attributes:
        problem: (rows,) which problem, ascending.
        kernel: (rows,) index into the pool.
        matrix: (rows, features).
        terms: (rows) what a launch's estimate is made of.
        log_work: (rows,) log(TFLOPS) of a launch of one clock.
    """

    problem: Ints
    kernel: Ints
    matrix: Floats
    terms: Terms
    log_work: Floats


def recorded_pairs(table: Table, rows: Ints) -> Pairs:
    """The pairs of some rows of a table, ascending, without what was measured of them."""
    return Pairs(
        table.problem[rows], table.kernel[rows], table.matrix[rows], table.terms.take(rows), table.log_work[rows]
    )


def supported_pairs(
    problems: Sequence[Problem], pool: Pool, target: Target, arch: HardwareProfile, features: FeatureTable
) -> Iterator[Pairs]:
    """All pairs of problems and the kernels that support them, :data:`CHUNK` problems at a time."""
    names = OPS[target.op].column_names()
    for start in range(0, len(problems), CHUNK):
        some = problems[start : start + CHUNK]
        at, kernel = np.nonzero(np.stack([pool.supported(p) for p in some]))
        columns = {n: np.array([getattr(p, n) for p in some])[at] for n in names}
        chosen = {n: values[kernel] for n, values in pool.columns.items()}
        seen = features.rows_of(columns, chosen, variant=target.variant, dtype=target.dtype, arch=arch)
        yield Pairs(start + at, kernel, features.compute(seen), terms_of(features, seen), log_work(seen))

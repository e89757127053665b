"""Pairs of problem and kernel that are not measured yet, with the inputs that a committee scores."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from tilewise.arch import HardwareProfile
from tilewise.features import FeatureTable, Terms, log_work, terms_of
from tilewise.kernels import Pool
from tilewise.metrics import Floats, Ints
from tilewise.ops import OPS, Problem, Target

CHUNK = 128  # problems whose features are in memory at the same time


@dataclass(frozen=True)
class Pairs:
    """Rows to score, sorted by problem and, within a problem, by the pool's order.

    Attributes:
        problem: number of each row's problem, ascending, of shape (rows,).
        kernel: index into the pool, of shape (rows,).
        matrix: feature values, of shape (rows, features).
        terms: cost terms of each row's launch.
        log_work: log(TFLOPS) of a launch of one clock, of shape (rows,).
    """

    problem: Ints
    kernel: Ints
    matrix: Floats
    terms: Terms
    log_work: Floats


def supported_pairs(
    problems: Sequence[Problem], pool: Pool, target: Target, arch: HardwareProfile, features: FeatureTable
) -> Iterator[Pairs]:
    """Yield all pairs of problems and supporting kernels, :data:`CHUNK` problems at a time."""
    names = OPS[target.op].column_names()
    for start in range(0, len(problems), CHUNK):
        some = problems[start : start + CHUNK]
        at, kernel = np.nonzero(pool.supported_of(some))
        columns = {n: np.array([getattr(p, n) for p in some])[at] for n in names}
        chosen = {n: values[kernel] for n, values in pool.columns.items()}
        inputs = features.rows_of(columns, chosen, variant=target.variant, dtype=target.dtype, arch=arch)
        yield Pairs(start + at, kernel, features.compute(inputs), terms_of(features, inputs), log_work(inputs))

"""Objectives that look at all kernels of a problem together: what matters is which one ends up first.

Both begin from the estimate, so scores stay the logarithm of a rate: the estimate's, plus what the trees add.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tilewise.train.dataset import Floats, Ints, numbered

Gradients = Callable[[Floats], tuple[Floats, Floats]]

MOST_RESIDUAL = 0.7  # of the logarithm: a kernel twice as slow as estimated is no candidate, however much slower

# Of the expected regret. Scores this far apart (3 %) are taken for well told apart, about what a model errs by.
TEMPERATURE = 0.03
REGRET_WEIGHT = 30.0  # of a problem's expected regret beside the squared residuals of its rows
STAKES = 0.05  # a regret that is usually at stake: what the curvature is taken from

# Of LambdaRank. Grades begin at half the best kernel's rate and grow with the square of what lies beyond.
GRADES = 31
WORST_GRADED = 0.5
SHARPNESS = 30.0  # of its logistic function, per unit of the logarithm: the inverse of a temperature
TRUNCATION = 20  # pairs have one of the so many highest scores


@dataclass(frozen=True)
class ExpectedRegret:
    """What a selection that is drawn from softmax(scores / TEMPERATURE) loses on average, beside squared residuals.

    The regret of a row is 1 - its efficiency. With p the softmax within a problem and r the regrets, the loss of a
    problem is ``REGRET_WEIGHT * sum(p r) + sum(w (score - log rate)^2) / 2``. The first part moves what is near the
    top, where a wrong order costs something; the second keeps the scale, so that scores still predict TFLOPS.

    Attributes:
        baseline: (rows,) scores that trees are added to.
        log_rate: (rows,) log(TFLOPS) as measured.
        regret: (rows,) 1 - efficiency.
        weight: (rows,) of the residuals.
        problem: (rows,) number of the problem, ascending.
    """

    baseline: Floats
    log_rate: Floats
    regret: Floats
    weight: Floats
    problem: Ints

    @property
    def params(self) -> Mapping[str, Any]:
        """LightGBM's."""
        return {"objective": "none"}

    def fields(self, rows: Ints) -> Mapping[str, Any]:
        """What LightGBM has to know of the rows besides labels."""
        return {}

    def gradients(self, rows: Ints) -> Gradients:
        """First and second derivatives by the scores of these rows, as trees grow."""
        first, problem = _problems(self.problem[rows])
        start, regret, weight = self.baseline[rows], self.regret[rows], self.weight[rows]
        wanted = self.log_rate[rows] - start

        def derivatives(added: Floats) -> tuple[Floats, Floats]:
            z = (start + added) / TEMPERATURE
            share = np.exp(z - np.maximum.reduceat(z, first)[problem])
            share /= np.add.reduceat(share, first)[problem]
            expected = np.add.reduceat(share * regret, first)[problem]
            residual = np.clip(added - wanted, -MOST_RESIDUAL, MOST_RESIDUAL)
            slope = REGRET_WEIGHT * share * (regret - expected) / TEMPERATURE + weight * residual
            curvature = REGRET_WEIGHT * STAKES * share * (1 - share) / TEMPERATURE**2 + weight
            return slope, curvature

        return derivatives


@dataclass(frozen=True)
class LambdaRank:
    """LightGBM's LambdaRank (Burges, MSR-TR-2010-82) on graded efficiency.

    A kernel's grade is ``31 ((efficiency - 0.5) / 0.5)^2``, rounded; 0 below half the best. A grade is its own gain.

    Attributes:
        baseline: (rows,) scores that trees are added to.
        problem: (rows,) number of the problem, ascending.
        lambda_l2: of the settings.
    """

    baseline: Floats
    problem: Ints
    lambda_l2: float

    @property
    def params(self) -> Mapping[str, Any]:
        """LightGBM's. Curvatures grow with SHARPNESS^2, and so does what is weighed against them."""
        return {
            "objective": "lambdarank",
            "sigmoid": SHARPNESS,
            "lambda_l2": self.lambda_l2 * SHARPNESS**2,
            "min_sum_hessian_in_leaf": 1e-3 * SHARPNESS**2,
            "lambdarank_truncation_level": TRUNCATION,
            "label_gain": [float(grade) for grade in range(GRADES + 1)],
        }

    def fields(self, rows: Ints) -> Mapping[str, Any]:
        """What LightGBM has to know of the rows besides labels."""
        first, _ = _problems(self.problem[rows])
        return {"group": np.diff(first, append=len(rows)).astype(np.int32), "init_score": self.baseline[rows]}

    def gradients(self, rows: Ints) -> None:
        """LightGBM's own."""


Objective = ExpectedRegret | LambdaRank


def grades(efficiency: Floats) -> Floats:
    """(rows,) grades of :class:`LambdaRank`: whole numbers from 0 to GRADES."""
    beyond = np.clip((efficiency - WORST_GRADED) / (1 - WORST_GRADED), 0.0, 1.0)
    graded: Floats = np.rint(GRADES * beyond**2)
    return graded


def _problems(problem: Ints) -> tuple[Ints, Ints]:
    """The first row of each problem, and (rows,) each row's place among the problems."""
    return np.flatnonzero(np.diff(problem, prepend=-1)), numbered(problem)

"""Objectives over all kernels of a problem together, where only the order at the top matters.

Both start from the cost model's prediction, so scores remain the logarithm of a rate: the predicted log rate plus the
correction of the trees.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from tilewise.metrics import Numbers
from tilewise.train._dataset import Floats, Ints, renumbered

Params = Mapping[str, str | float | bool | Sequence[float]]
Gradients = Callable[[Floats], tuple[Floats, Floats]]

# Of the logarithm: a kernel twice as slow as predicted is no candidate, however much slower it is.
MOST_RESIDUAL = 0.7

# Expected regret. Scores this far apart (3 %) count as distinguished; it is about the error of a model.
TEMPERATURE = 0.03
REGRET_WEIGHT = 30.0  # of a problem's expected regret relative to the squared residuals of its rows
TYPICAL_REGRET = 0.05  # the curvature is computed for this regret

# LambdaRank. Grades start at half the best kernel's rate and grow with the square of the excess.
GRADES = 31
WORST_GRADED = 0.5
SHARPNESS = 30.0  # of the logistic function, per unit of the logarithm: an inverse temperature
TRUNCATION = 20  # each pair contains one of this many highest scores


@dataclass(frozen=True)
class ExpectedRegret:
    """Mean loss of a selection drawn from softmax(scores / TEMPERATURE), plus squared residuals.

    The regret of a row is 1 - its efficiency. With p the softmax within a problem and r the regrets, the loss of a
    problem is ``REGRET_WEIGHT * sum(p r) + sum(w (score - log rate)^2) / 2``. The first part moves rows near the top,
    where a wrong order costs something; the second keeps the scale, so that scores still predict TFLOPS.

    Attributes:
        baseline: scores that the trees are added to, of shape (rows,).
        log_rate: measured log(TFLOPS), of shape (rows,).
        regret: 1 - efficiency, of shape (rows,).
        weight: weights of the residuals, of shape (rows,).
        problem: number of each row's problem, ascending, of shape (rows,).
    """

    baseline: Floats
    log_rate: Floats
    regret: Floats
    weight: Floats
    problem: Numbers

    @property
    def params(self) -> Params:
        """Additional LightGBM parameters."""
        return {"objective": "none"}

    def fields(self, rows: Ints) -> Mapping[str, npt.NDArray[np.generic]]:
        """Return LightGBM's dataset fields for these rows, besides labels and weights."""
        return {}

    def take(self, rows: Ints) -> ExpectedRegret:
        """Return the objective of some rows."""
        names = ("baseline", "log_rate", "regret", "weight", "problem")
        return replace(self, **{name: getattr(self, name)[rows] for name in names})

    def gradients(self, rows: Ints) -> Gradients:
        """Return the function that computes first and second derivatives by the scores of these rows."""
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
            curvature = REGRET_WEIGHT * TYPICAL_REGRET * share * (1 - share) / TEMPERATURE**2 + weight
            return slope, curvature

        return derivatives


@dataclass(frozen=True)
class LambdaRank:
    """LightGBM's LambdaRank (Burges, MSR-TR-2010-82) on graded efficiency.

    A kernel's grade is ``31 ((efficiency - 0.5) / 0.5)^2``, rounded; 0 below half the best. A grade is its own gain.

    Attributes:
        baseline: scores that the trees are added to, of shape (rows,).
        problem: number of each row's problem, ascending, of shape (rows,).
        lambda_l2: regularisation from the model settings.
    """

    baseline: Floats
    problem: Numbers
    lambda_l2: float

    @property
    def params(self) -> Params:
        """Additional LightGBM parameters; terms added to curvatures grow with SHARPNESS^2, as the curvatures do."""
        return {
            "objective": "lambdarank",
            "sigmoid": SHARPNESS,
            "lambda_l2": self.lambda_l2 * SHARPNESS**2,
            "min_sum_hessian_in_leaf": 1e-3 * SHARPNESS**2,
            "lambdarank_truncation_level": TRUNCATION,
            "label_gain": [float(grade) for grade in range(GRADES + 1)],
        }

    def fields(self, rows: Ints) -> Mapping[str, npt.NDArray[np.generic]]:
        """Return LightGBM's dataset fields for these rows, besides labels and weights."""
        first, _ = _problems(self.problem[rows])
        return {"group": np.diff(first, append=len(rows)).astype(np.int32), "init_score": self.baseline[rows]}

    def take(self, rows: Ints) -> LambdaRank:
        """Return the objective of some rows."""
        return replace(self, baseline=self.baseline[rows], problem=self.problem[rows])

    def gradients(self, rows: Ints) -> None:
        """Return None: LightGBM computes them."""


Objective = ExpectedRegret | LambdaRank


def grades(efficiency: Floats) -> Floats:
    """Return the grades of :class:`LambdaRank`, whole numbers from 0 to GRADES, of shape (rows,)."""
    beyond = np.clip((efficiency - WORST_GRADED) / (1 - WORST_GRADED), 0.0, 1.0)
    graded: Floats = np.rint(GRADES * beyond**2)
    return graded


def _problems(problem: Numbers) -> tuple[Ints, Ints]:
    """Return the first row of each problem, and each row's problem number without gaps."""
    return np.flatnonzero(np.diff(problem, prepend=-1)), renumbered(problem)

"""Search for better model settings: an Optuna study over folds of the training data.

`tune` takes prepared training data and folds, and gives a :class:`tilewise.train.TuningResult`. It imports training
data, boosting and cross-validation; it never sees the holdout. Used by :func:`tilewise.train.train` and benchmarks.
"""

from __future__ import annotations

from tilewise.train.tuning._objectives import LOWER_IS_BETTER, pareto_front
from tilewise.train.tuning._study import NumberedSampler
from tilewise.train.tuning._tune import suggest, trial_model, tune

__all__ = [
    "LOWER_IS_BETTER",
    "NumberedSampler",
    "pareto_front",
    "suggest",
    "trial_model",
    "tune",
]

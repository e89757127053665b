"""Learn one model in this process, or in several processes together.

`fit_model` and `grow_model` take a :class:`Learning` (table, settings, labels, rows) and an executor, and give the
booster, or the scores of test rows while it grows. It imports features' bins, labels and the training table. Used by
:mod:`tilewise.train` and benchmarks.
"""

from __future__ import annotations

from tilewise.train.hosts._together import Learning, Stop, fit_model, grow_model

__all__ = [
    "Learning",
    "Stop",
    "fit_model",
    "grow_model",
]

"""Calibrate a launch's cost model to measurements, and give trees the baseline that they add to.

`calibrate` takes the cost terms and measured clocks of launches and gives a :class:`tilewise.features.CostModel`.
`Baselines` gives the scores of each choice of training problems before any tree grows, and the shortlist that goes
with them. It imports features, model and the training table. Used by :mod:`tilewise.train`, planning and benchmarks.
"""

from __future__ import annotations

from tilewise.train.cost_model._baseline import Baselines
from tilewise.train.cost_model._calibrate import calibrate

__all__ = [
    "Baselines",
    "calibrate",
]

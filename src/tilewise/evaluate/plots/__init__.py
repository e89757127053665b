"""Draw evaluations, learning curves and tuning studies as PNG files, without a display.

Each function takes figures and a path, and writes one deterministic file in the style of all plots; `plot_study` takes
a folder. It imports matplotlib, metrics and evaluate, and the result types of train. Used by reports, the command line
and the registry.
"""

from __future__ import annotations

from tilewise.evaluate.plots._confidence_plots import plot_bounds, plot_distance
from tilewise.evaluate.plots._efficiency_plots import (
    plot_efficiency,
    plot_importances,
    plot_predictions,
    plot_regret,
    plot_slices,
)
from tilewise.evaluate.plots._learning_plots import plot_by_problems, plot_by_trees
from tilewise.evaluate.plots._study_plots import plot_study

__all__ = [
    "plot_bounds",
    "plot_by_problems",
    "plot_by_trees",
    "plot_distance",
    "plot_efficiency",
    "plot_importances",
    "plot_predictions",
    "plot_regret",
    "plot_slices",
    "plot_study",
]

"""Draw evaluations, learning curves and tuning studies as PNG files, without a display.

Each function takes figures and a path, and writes one deterministic file in the style of all plots; `plot_study` takes
a folder. It imports matplotlib, metrics and evaluate, and the result types of train. Used by reports, the command line
and the registry. Members are imported when first used, so that plots of an evaluation do without the training library.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewise._lazy import lazy_face

if TYPE_CHECKING:
    from tilewise.evaluate.plots._confidence_plots import plot_bounds as plot_bounds
    from tilewise.evaluate.plots._confidence_plots import plot_distance as plot_distance
    from tilewise.evaluate.plots._efficiency_plots import plot_efficiency as plot_efficiency
    from tilewise.evaluate.plots._efficiency_plots import plot_importances as plot_importances
    from tilewise.evaluate.plots._efficiency_plots import plot_predictions as plot_predictions
    from tilewise.evaluate.plots._efficiency_plots import plot_regret as plot_regret
    from tilewise.evaluate.plots._efficiency_plots import plot_slices as plot_slices
    from tilewise.evaluate.plots._learning_plots import plot_by_problems as plot_by_problems
    from tilewise.evaluate.plots._learning_plots import plot_by_trees as plot_by_trees
    from tilewise.evaluate.plots._study_plots import plot_study as plot_study

__all__, __getattr__ = lazy_face(
    __name__,
    {
        "_confidence_plots": ("plot_bounds", "plot_distance"),
        "_efficiency_plots": ("plot_efficiency", "plot_importances", "plot_predictions", "plot_regret", "plot_slices"),
        "_learning_plots": ("plot_by_problems", "plot_by_trees"),
        "_study_plots": ("plot_study",),
    },
)

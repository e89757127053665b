"""Judge models by measurements: holdout evaluation, comparison, noise ceiling, confidence coverage and reports.

`evaluate` takes a model and a measurement table and gives an :class:`Evaluation`; `compare_models` takes two models.
It imports data, features, metrics and model; it never imports train (except for plots), registry or dispatch. Used by
the gate, the registry, the campaigns and the command line. Members load lazily: the gate needs no matplotlib.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewise._lazy import lazy_face

if TYPE_CHECKING:
    from tilewise.evaluate._bootstrap import STATISTICS as STATISTICS
    from tilewise.evaluate._bootstrap import Interval as Interval
    from tilewise.evaluate._bootstrap import paired_bootstrap as paired_bootstrap
    from tilewise.evaluate._compare import CompareSettings as CompareSettings
    from tilewise.evaluate._compare import Comparison as Comparison
    from tilewise.evaluate._compare import compare_models as compare_models
    from tilewise.evaluate._drift import DriftRow as DriftRow
    from tilewise.evaluate._drift import TimedPick as TimedPick
    from tilewise.evaluate._drift import drift_rows as drift_rows
    from tilewise.evaluate._evaluation import Evaluation as Evaluation
    from tilewise.evaluate._evaluation import NoiseCeiling as NoiseCeiling
    from tilewise.evaluate._evaluation_report import report_summary as report_summary
    from tilewise.evaluate._evaluation_report import write_evaluation_report as write_evaluation_report
    from tilewise.evaluate._evaluation_report import write_plots as write_plots
    from tilewise.evaluate._holdout import evaluate as evaluate
    from tilewise.evaluate._noise import noise_ceiling as noise_ceiling
    from tilewise.evaluate._predictions import PREDICTION_FORMATS as PREDICTION_FORMATS
    from tilewise.evaluate._predictions import Predictions as Predictions
    from tilewise.evaluate._predictions import compare_predictions as compare_predictions
    from tilewise.evaluate._predictions import is_predictions as is_predictions
    from tilewise.evaluate._predictions import only_slices as only_slices
    from tilewise.evaluate._predictions import read_predictions as read_predictions
    from tilewise.evaluate._predictions import with_efficiency as with_efficiency
    from tilewise.evaluate._predictions import write_predictions as write_predictions
    from tilewise.evaluate._scored_table import ScoredTable as ScoredTable
    from tilewise.evaluate._scored_table import judged_rows as judged_rows
    from tilewise.evaluate._slices import CK_M_SIZE as CK_M_SIZE
    from tilewise.evaluate._slices import MIN_PROBLEMS_SHOWN as MIN_PROBLEMS_SHOWN
    from tilewise.evaluate._slices import SLICES_OF_TABLE as SLICES_OF_TABLE
    from tilewise.evaluate._slices import SliceFigures as SliceFigures
    from tilewise.evaluate._slices import problem_groups as problem_groups
    from tilewise.evaluate._slices import slice_labels as slice_labels
    from tilewise.evaluate._slices import slice_names as slice_names
    from tilewise.evaluate._slices import sliced_metrics as sliced_metrics
    from tilewise.evaluate._slices import with_ck_slices as with_ck_slices

__all__, __getattr__ = lazy_face(
    __name__,
    {
        "_bootstrap": (
            "Interval",
            "STATISTICS",
            "paired_bootstrap",
        ),
        "_compare": (
            "CompareSettings",
            "Comparison",
            "compare_models",
        ),
        "_drift": (
            "DriftRow",
            "TimedPick",
            "drift_rows",
        ),
        "_evaluation": (
            "Evaluation",
            "NoiseCeiling",
        ),
        "_evaluation_report": (
            "report_summary",
            "write_evaluation_report",
            "write_plots",
        ),
        "_holdout": ("evaluate",),
        "_noise": ("noise_ceiling",),
        "_predictions": (
            "PREDICTION_FORMATS",
            "Predictions",
            "compare_predictions",
            "is_predictions",
            "only_slices",
            "read_predictions",
            "with_efficiency",
            "write_predictions",
        ),
        "_scored_table": (
            "ScoredTable",
            "judged_rows",
        ),
        "_slices": (
            "CK_M_SIZE",
            "MIN_PROBLEMS_SHOWN",
            "SLICES_OF_TABLE",
            "SliceFigures",
            "problem_groups",
            "slice_labels",
            "slice_names",
            "sliced_metrics",
            "with_ck_slices",
        ),
    },
)

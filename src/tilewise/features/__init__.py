"""Features: the matrix that models read, one table per op, and the cost model over the same inputs.

Takes problem and kernel columns, variant, dtype and hardware; gives float64 matrices, one row per (problem, kernel).
Imports `arch`, `ops` and `kernels`, only NumPy besides. Used by `model`, `train`, `evaluate`, `campaigns`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewise._lazy import lazy_face

if TYPE_CHECKING:
    from tilewise.features._block_inputs import BLOCK_RESERVE_BYTES as BLOCK_RESERVE_BYTES
    from tilewise.features._cost_model import INTERCEPT as INTERCEPT
    from tilewise.features._cost_model import MOST_CORRECTION as MOST_CORRECTION
    from tilewise.features._cost_model import MOST_DEVIATIONS as MOST_DEVIATIONS
    from tilewise.features._cost_model import MOST_SHARE as MOST_SHARE
    from tilewise.features._cost_model import CostModel as CostModel
    from tilewise.features._cost_model import Terms as Terms
    from tilewise.features._cost_model import correction_basis as correction_basis
    from tilewise.features._cost_model import correction_columns as correction_columns
    from tilewise.features._cost_model import log_work as log_work
    from tilewise.features._cost_model import terms_of as terms_of
    from tilewise.features._feature_table import Conditions as Conditions
    from tilewise.features._feature_table import Feature as Feature
    from tilewise.features._feature_table import FeatureTable as FeatureTable
    from tilewise.features._feature_table import Inputs as Inputs
    from tilewise.features._feature_table import Term as Term
    from tilewise.features._launches import BATCH_ROWS as BATCH_ROWS
    from tilewise.features._launches import FeatureRows as FeatureRows
    from tilewise.features._launches import Launches as Launches
    from tilewise.features._shape_distance import log_sizes as log_sizes
    from tilewise.features._shape_distance import nearest_shape_distance as nearest_shape_distance
    from tilewise.features._shape_distance import nearest_shape_distances as nearest_shape_distances
    from tilewise.features._shape_distance import shape_distances as shape_distances
    from tilewise.features._tables_by_op import FEATURES as FEATURES
    from tilewise.features._tables_by_op import feature_table as feature_table
    from tilewise.features._tables_by_op import feature_table_of as feature_table_of

__all__, __getattr__ = lazy_face(
    __name__,
    {
        "_block_inputs": ("BLOCK_RESERVE_BYTES",),
        "_cost_model": (
            "CostModel",
            "INTERCEPT",
            "MOST_CORRECTION",
            "MOST_DEVIATIONS",
            "MOST_SHARE",
            "Terms",
            "correction_basis",
            "correction_columns",
            "log_work",
            "terms_of",
        ),
        "_feature_table": (
            "Conditions",
            "Feature",
            "FeatureTable",
            "Inputs",
            "Term",
        ),
        "_launches": (
            "BATCH_ROWS",
            "FeatureRows",
            "Launches",
        ),
        "_shape_distance": (
            "log_sizes",
            "nearest_shape_distance",
            "nearest_shape_distances",
            "shape_distances",
        ),
        "_tables_by_op": (
            "FEATURES",
            "feature_table",
            "feature_table_of",
        ),
    },
)

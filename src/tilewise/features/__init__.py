"""Problem x kernel x hardware -> matrix. One table an op; each feature is described once, next to its formula."""

from __future__ import annotations

from collections.abc import Callable

from tilewise.errors import ConfigError
from tilewise.features._base import Feature, FeatureTable, Inputs, Term

__all__ = ["FEATURES", "Feature", "FeatureTable", "Inputs", "Term", "feature_table"]


def _gemm() -> FeatureTable:
    from tilewise.features.gemm import TABLE

    return TABLE


def _grouped_conv() -> FeatureTable:
    from tilewise.features.grouped_conv import TABLE

    return TABLE


# The one list of tables, by op. Each is imported when it is first asked for: a dispatcher needs one of them.
FEATURES: dict[str, Callable[[], FeatureTable]] = {"gemm": _gemm, "grouped_conv": _grouped_conv}


def feature_table(op: str) -> FeatureTable:
    """All features of an op.

    Raises:
        ConfigError: there is no table for the op.
    """
    if op not in FEATURES:
        raise ConfigError(f"op {op!r} has no features; known are {', '.join(FEATURES)}")
    return FEATURES[op]()

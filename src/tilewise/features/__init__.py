"""Problem x kernel x hardware -> matrix. One table an op; each feature is described once, next to its formula."""

from __future__ import annotations

from functools import cache

from tilewise.errors import ConfigError
from tilewise.features._base import Feature, FeatureTable

__all__ = ["OPS_WITH_FEATURES", "Feature", "FeatureTable", "feature_table"]

OPS_WITH_FEATURES = ("gemm", "grouped_conv")


@cache
def feature_table(op: str) -> FeatureTable:
    """All features of an op.

    Raises:
        ConfigError: there is no table for the op.
    """
    if op == "gemm":
        from tilewise.features.gemm import TABLE
    elif op == "grouped_conv":
        from tilewise.features.grouped_conv import TABLE
    else:
        raise ConfigError(f"op {op!r} has no features; known are {', '.join(OPS_WITH_FEATURES)}")
    return TABLE

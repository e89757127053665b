"""The registry of feature tables, by op."""

from __future__ import annotations

from collections.abc import Callable

from tilewise.errors import ConfigError
from tilewise.features._feature_table import FeatureTable


def _gemm() -> FeatureTable:
    from tilewise.features._gemm_features import gemm_table

    return gemm_table()


def _grouped_conv() -> FeatureTable:
    from tilewise.features._conv_features import conv_table

    return conv_table()


# Each table is imported on first use: a dispatcher needs only one of them.
FEATURES: dict[str, Callable[[], FeatureTable]] = {"gemm": _gemm, "grouped_conv": _grouped_conv}


def feature_table(op: str) -> FeatureTable:
    """Return all features of an op.

    Raises:
        ConfigError: the op has no table.
    """
    if op not in FEATURES:
        raise ConfigError(f"op {op!r} has no features; known are {', '.join(FEATURES)}")
    return FEATURES[op]()

"""The registry of feature tables, by op."""

from __future__ import annotations

from collections.abc import Callable

from tilewise.errors import ConfigError
from tilewise.features._feature_table import FeatureTable
from tilewise.ops import OpDefinition, find_definition


def _gemm() -> FeatureTable:
    from tilewise.features._gemm_features import gemm_table

    return gemm_table()


def _grouped_conv() -> FeatureTable:
    from tilewise.features._conv_features import conv_table

    return conv_table()


# Each table is imported on first use: a dispatcher needs only one of them.
FEATURES: dict[str, Callable[[], FeatureTable]] = {"gemm": _gemm, "grouped_conv": _grouped_conv}


def feature_table(op: str) -> FeatureTable:
    """Return all features of an op, built in or of the user's own.

    Raises:
        ConfigError: the op has no table.
    """
    if op in FEATURES:
        return FEATURES[op]()
    definition = find_definition(op)
    if definition is None:
        raise ConfigError(f"op {op!r} has no features; known are {', '.join(FEATURES)}")
    return feature_table_of(definition)


def feature_table_of(definition: OpDefinition) -> FeatureTable:
    """Return all features of a definition, which a model brings along; the registered one may have others.

    Raises:
        ConfigError: an own feature has the name of a derived one.
    """
    from tilewise.features._defined_features import defined_table

    return defined_table(definition)

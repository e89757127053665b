"""Figures that every store of MLflow takes."""

from __future__ import annotations

from collections.abc import Mapping


def finite(metrics: Mapping[str, float]) -> dict[str, float]:
    """Drop NaN and infinity, which some of MLflow's stores refuse."""
    return {k: float(v) for k, v in metrics.items() if abs(float(v)) < float("inf")}

"""The metrics of a selection, as :mod:`tilewise.metrics` defines them.

They are defined further left, because training judges its folds and trials by the very same figures.
"""

from __future__ import annotations

from tilewise.metrics import METRICS, Selections, objective, select, summarise

__all__ = ["METRICS", "Selections", "objective", "select", "summarise"]

"""Metrics of dispatchers for Prometheus, read from their counters whenever Prometheus asks.

Takes dispatchers, or the :class:`tilewise.dispatch.Registry` of an arch; gives a collector for ``prometheus_client``.
Needs the extra ``metrics``. Requests pay nothing. Used by applications.
"""

from __future__ import annotations

from tilewise.dispatch.metrics._collector import DispatcherCollector

__all__ = ["DispatcherCollector"]

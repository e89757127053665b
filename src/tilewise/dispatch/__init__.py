"""The runtime: a dispatcher loads a target's model, ranks and selects kernels, launches them, and refreshes its model.

Takes problems and gives selections; without a model it measures, or falls back to the pool's default. `Registry` holds
the dispatchers of one arch. Importing this package needs NumPy and the standard library only. Used by applications,
:mod:`tilewise.torch` and the command line.
"""

from __future__ import annotations

from tilewise.dispatch._dispatcher import Dispatcher
from tilewise.dispatch._figures import Figures
from tilewise.dispatch._registry import Registry
from tilewise.dispatch._selection import Comparison, Selection
from tilewise.dispatch._switches import Switches
from tilewise.kernels import Epilogue

__all__ = [
    "Comparison",
    "Dispatcher",
    "Epilogue",
    "Figures",
    "Registry",
    "Selection",
    "Switches",
]

"""The runtime: load a model by alias, rank, select; fall back where it is missing. NumPy and the standard library."""

from tilewise.dispatch.dispatcher import Dispatcher
from tilewise.dispatch.selection import Selection
from tilewise.dispatch.switches import Switches
from tilewise.model.trust import Trust

__all__ = ["Dispatcher", "Selection", "Switches", "Trust"]

"""Optional libraries of the project: tests that need them skip without."""

from __future__ import annotations

from importlib.util import find_spec

from tilewise._extras import EXTRAS


def has_extra(name: str) -> bool:
    """Return whether every library of an extra is installed."""
    return all(find_spec(module) for module in EXTRAS[name])

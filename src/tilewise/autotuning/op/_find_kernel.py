"""Tuned kernels by their place: ``module:attribute`` as the user states it, or an entry point of a package."""

from __future__ import annotations

import sys
from importlib import import_module, metadata

from tilewise.autotuning._tunable import Tunable
from tilewise.errors import ConfigError

ENTRY_POINTS = "tilewise.kernels"  # the group; each entry is the name of an op and the place of its kernel


def find_kernel(place: str) -> Tunable:
    """Import a tuned kernel. The current folder is searched first, as Python does for scripts.

    Args:
        place: ``module:attribute``, or the name of an entry point of the group :data:`ENTRY_POINTS`.

    Raises:
        ConfigError: there is no such kernel, or importing it fails.
    """
    module, colon, attribute = place.partition(":")
    try:
        if colon:
            if "" not in sys.path:
                sys.path.insert(0, "")
            found: object = import_module(module)
            for name in attribute.split("."):
                found = getattr(found, name)
        else:
            points = metadata.entry_points(group=ENTRY_POINTS, name=place)
            if not points:
                raise ConfigError(
                    f"collect.kernel must be MODULE:ATTRIBUTE, or an entry point of {ENTRY_POINTS}, got {place!r}"
                )
            found = next(iter(points)).load()
    except (ImportError, AttributeError, ValueError) as e:
        raise ConfigError(f"collect.kernel={place}: cannot be imported: {e}") from e
    while not isinstance(found, Tunable) and hasattr(found, "fn"):  # within decorators such as triton.heuristics
        found = found.fn
    if not isinstance(found, Tunable):
        raise ConfigError(
            f"collect.kernel={place}: must be a kernel under @tilewise.autotune, got {type(found).__name__}"
        )
    return found

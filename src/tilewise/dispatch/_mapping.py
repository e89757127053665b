"""Keys that look up the decision for a problem's dict without building the problem."""

from __future__ import annotations

from collections.abc import Callable, Hashable

from tilewise.core import compiled_core

MappingKey = tuple[Hashable, ...]
KeyFunction = Callable[[dict[str, object]], MappingKey]


def mapping_key(mapping: dict[str, object]) -> MappingKey:
    """Return a dict's names, values and types; types count because True and 1.0 equal 1 but are refused."""
    return (*mapping, *mapping.values(), *map(type, mapping.values()))


def fastest_mapping_key() -> KeyFunction:
    """Return :func:`mapping_key`, or the compiled core's equivalent, which takes a third of the time."""
    core = compiled_core()
    return mapping_key if core is None else core.key_of

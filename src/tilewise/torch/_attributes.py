"""Attributes of modules, with the contents of containers and objects among them, and whether they have changed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import NamedTuple

from torch import Tensor, nn

Container = list[object] | dict[str, object] | set[object] | deque[object]
INTERNAL = (frozenset(vars(nn.Module())) | {"_compiled_call_impl", "_is_torch_compile"}) - {"training"}
INSTALLED = frozenset({"forward", "_replicate_for_data_parallel"})  # by a fused forward, in its network
_CHANGING = ("torch", "logging", "threading", "pathlib")  # objects of these packages keep caches and counts
_MOST_VALUES = 10_000  # that are looked at in each call


class Attributes:
    """The attributes of modules, and all that can be reached from them.

    Args:
        modules: those whose code is part of a network's graph, the network first.
    """

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        kept = [(vars(m), INTERNAL | INSTALLED if m is modules[0] else INTERNAL) for m in modules]
        self._kept = tuple(_Kept.of(attributes, ignored) for attributes, ignored in kept)
        self._tensors = tuple((d, _are_none(d)) for m in modules for d in (m._parameters, m._buffers))
        self._contents = _contents(value for of_module in self._kept for value in of_module.values)

    def are_unchanged(self) -> bool:
        """Return whether they are the same, and no module got an attribute or a ``forward`` of its own."""
        if self._contents is None:
            return False
        try:
            for attributes, size, keys, values, ignored in self._kept:
                if tuple(map(attributes.get, keys)) != values:
                    return False
                if len(attributes) != size and any(k not in ignored and k not in keys for k in attributes):
                    return False
            for live, copied in self._contents:
                if live != copied:
                    return False
        except (RuntimeError, ValueError):  # tensors and arrays, which are compared by element
            return False
        for tensors, are_none in self._tensors:
            if len(tensors) != len(are_none) or (tensors and _are_none(tensors) != are_none):
                return False
        return True


class _Kept(NamedTuple):
    """The attributes of a module, with their size, keys and values as they were, and the keys that do not count."""

    attributes: dict[str, object]
    size: int
    keys: tuple[str, ...]
    values: tuple[object, ...]
    ignored: frozenset[str]

    @classmethod
    def of(cls, attributes: dict[str, object], ignored: frozenset[str]) -> _Kept:
        """Return the attributes as they are now."""
        keys = tuple(key for key in attributes if key not in ignored)
        return cls(attributes, len(attributes), keys, tuple(map(attributes.get, keys)), ignored)


def _are_none(tensors: dict[str, Tensor | None]) -> dict[str, bool]:
    return {name: t is None for name, t in tensors.items()}


def _contents(values: Iterable[object]) -> tuple[tuple[Container, Container], ...] | None:
    """Return all containers that can be reached from values, each with a copy; None if they are too many."""
    found: list[tuple[Container, Container]] = []
    seen, waiting = set[int](), list(values)
    while waiting:
        value = waiting.pop()
        if id(value) in seen or isinstance(value, str | int | float | Tensor | nn.Module | None):
            continue
        seen.add(id(value))
        if isinstance(value, tuple | frozenset):
            waiting += value
        for live in (value, vars(value) if _has_attributes(value) else None):
            if isinstance(live, list | dict | set | deque):
                found.append((live, _copied(live)))
                waiting += live.values() if isinstance(live, dict) else live
        if len(seen) + len(waiting) > _MOST_VALUES:
            return None
    return tuple(found)


def _copied(container: Container) -> Container:
    """Return the items, by classes whose copies and comparisons are known."""
    if isinstance(container, dict):
        return dict(container)
    if isinstance(container, set):
        return set(container)
    return deque(container) if isinstance(container, deque) else list(container)


def _has_attributes(value: object) -> bool:
    """Return whether a value is an object, other than a module or tensor, whose attributes code may set."""
    is_other = isinstance(value, type | ModuleType | nn.Module | Tensor)
    is_plain = not is_other and type(value).__module__.partition(".")[0] not in _CHANGING
    return is_plain and isinstance(getattr(value, "__dict__", None), dict)


def state_of(network: nn.Module) -> list[tuple[Container, Container]]:
    """Return the attributes of all modules of a network, and the contents of these, each with a copy."""
    own = [d for m in network.modules() for d in (vars(m), m._modules, m._parameters, m._buffers)]
    values = [value for d in own for key, value in d.items() if key not in INTERNAL and key not in INSTALLED]
    return [(d, dict(d)) for d in own] + list(_contents(values) or ())


def is_other(live: Container, copied: Container) -> bool:
    """Return whether a container has other items than its copy, be they equal."""
    a, b = ([*map(id, c)] + ([*map(id, c.values())] if isinstance(c, dict) else []) for c in (live, copied))
    return sorted(a) != sorted(b) if isinstance(live, set) else a != b

"""Lazy faces (PEP 562): packages that import a member when it is first used, because some members are heavy."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module


def lazy_face(package: str, members: Mapping[str, Sequence[str]]) -> tuple[list[str], Callable[[str], object]]:
    """Return ``__all__`` and ``__getattr__`` for a package's ``__init__``.

    Args:
        package: The package's ``__name__``.
        members: The public names of each private module.
    """
    module_of = {name: module for module, names in members.items() for name in names}

    def find(name: str) -> object:
        if name in module_of:
            return getattr(import_module(f"{package}.{module_of[name]}"), name)
        raise AttributeError(f"module {package!r} has no attribute {name!r}; it has {', '.join(sorted(module_of))}")

    return sorted(module_of), find

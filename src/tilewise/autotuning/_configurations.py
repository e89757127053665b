"""Configurations: the values that tune a call, as keyword arguments of the launch and under a stable name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from tilewise.errors import KernelError, UsageError

Value = int | float | str | bool
Hook = Callable[[dict[str, object]], object]


@dataclass(frozen=True, eq=False)
class Configuration:
    """One way to run a call.

    Attributes:
        name: states all values, in the order of their names; it identifies the configuration in caches and tables.
        arguments: keyword arguments of the launch.
        given: the object that the user listed, a ``triton.Config`` or a mapping; pruning functions receive it.
        pre_hook: called with all arguments by name before each launch; None without one.
    """

    name: str
    arguments: Mapping[str, object]
    given: object
    pre_hook: Hook | None = None

    @property
    def columns(self) -> dict[str, Value]:
        """The values by name, as columns of a measurement table: numbers and flags as they are, others as text."""
        return {name: _column(value) for name, value in self.arguments.items()}


def configurations_of(given: Iterable[object]) -> tuple[Configuration, ...]:
    """Return the configurations of a user's list; an empty list gives one without arguments.

    Args:
        given: ``triton.Config`` objects, or mappings from names to values.

    Raises:
        KernelError: an entry is neither, stands twice, or has a value without a stable text.
    """
    found = tuple(_configuration(entry) for entry in list(given) or [{}])
    by_name: dict[str, int] = {}
    for number, configuration in enumerate(found):
        if configuration.name in by_name:
            first = by_name[configuration.name]
            raise KernelError(f"configs[{number}] repeats configs[{first}] ({configuration.name}); list it once")
        by_name[configuration.name] = number
    return found


def _configuration(given: object) -> Configuration:
    all_kwargs = getattr(given, "all_kwargs", None)
    if callable(all_kwargs):
        arguments, pre_hook = dict(all_kwargs()), getattr(given, "pre_hook", None)
    elif isinstance(given, Mapping):
        arguments, pre_hook = dict(given), None
    else:
        raise KernelError(f"a configuration must be a triton.Config or a mapping, got {given!r:.100}")
    stated = {name: _column(value) for name, value in sorted(arguments.items())}
    hook = {} if pre_hook is None else {"pre_hook": _name_of(pre_hook)}
    name = ",".join(f"{key}={value}" for key, value in (stated | hook).items())
    return Configuration(name, arguments, given, pre_hook)


def _name_of(hook: object) -> str:
    return str(getattr(hook, "__qualname__", type(hook).__qualname__))


def _column(value: object) -> Value:
    if isinstance(value, int | float | str):
        return value
    text = _name_of(value) if callable(value) and hasattr(value, "__qualname__") else str(value)
    if " at 0x" in text:
        raise KernelError(
            f"a configuration's value must have a stable text, got {value!r:.100}; use a number or a text"
        )
    return text


def columns_of(configurations: Iterable[Configuration]) -> tuple[str, ...]:
    """Return the names of all values of the configurations, in the order in which they first occur.

    Raises:
        UsageError: the configurations state different names, so they do not form a table.
    """
    names: tuple[str, ...] | None = None
    for configuration in configurations:
        own = tuple(configuration.arguments)
        if names is not None and set(own) != set(names):
            raise UsageError(f"configurations must state the same names: {', '.join(names)}; got {', '.join(own)}")
        names = names or own
    return names or ()

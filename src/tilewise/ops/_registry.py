"""The ops that tilewise knows: the problem type of each, by name, and where definitions of other ops are found."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path

from tilewise.conf_files import conf_file, conf_options
from tilewise.errors import ConfigError
from tilewise.ops._defined_problem import DefinedProblem, problem_type
from tilewise.ops._definition import OpDefinition
from tilewise.ops._gemm import GemmProblem
from tilewise.ops._grouped_conv import GroupedConvProblem
from tilewise.ops._problem import Problem

ENTRY_POINTS = "tilewise.ops"  # the group; each entry is the name of an op and the place of its definition

# Built-in ops, and those that were registered or found.
OPS: dict[str, type[Problem]] = {p.op: p for p in (GemmProblem, GroupedConvProblem)}

_lock = threading.Lock()


def register(definition: OpDefinition) -> None:
    """Make an op known to this process: targets, tables, training and dispatchers then take it like a built-in one.

    The same definition may be registered again, and one with other expressions replaces it.

    Raises:
        ConfigError: an op of this name has other columns.
    """
    with _lock:
        known = OPS.get(definition.name)
        if known is None:
            made = problem_type(definition.interface)
            made.definition = definition
            OPS[definition.name] = made
            return
        stated = definition_of(definition.name)
        if stated is None or stated.interface != definition.interface:
            raise ConfigError(
                f"op {definition.name} is known with other columns{_difference(stated, definition)}; choose another "
                "name, or use the definition that its tables and models were made with"
            )
        known.definition = definition  # type: ignore[attr-defined]  # a DefinedProblem


def adopt(definition: OpDefinition) -> type[Problem]:
    """Return the problem type of a definition that came with a model or a problem; register the op if it is unknown.

    A known op keeps its own expressions.

    Raises:
        ConfigError: an op of this name has other columns.
    """
    known = find_definition(definition.name)
    if known is None or known.interface != definition.interface:
        register(definition)
    return OPS[definition.name]


def definition_of(op: str) -> OpDefinition | None:
    """Return the definition of a known op of the user's own; None for others."""
    known = OPS.get(op)
    return known.definition if known is not None and issubclass(known, DefinedProblem) else None


def find_definition(op: str) -> OpDefinition | None:
    """Return the definition of an op, and register it where it was not known; None without one.

    A definition is registered, or stands in the project's ``conf/op/NAME.yaml``, or is an entry point of the group
    :data:`ENTRY_POINTS` of an installed package: a definition, or a function that returns one.

    Raises:
        ConfigError: the definition breaks a rule, or is that of another op; names the file or entry point.
    """
    if op in OPS:
        return definition_of(op)
    found = _from_conf(op) or _from_packages(op)
    if found is not None:
        register(found)
    return found


def is_known(op: str) -> bool:
    """Return whether an op is built in, registered, or found by :func:`find_definition`."""
    return op in OPS or find_definition(op) is not None


def known_ops() -> tuple[str, ...]:
    """Return the names of all ops that can be found, built-in ones first."""
    installed = (point.name for point in metadata.entry_points(group=ENTRY_POINTS))
    return tuple(dict.fromkeys([*OPS, *conf_options("op"), *installed]))


def read_definition(path: Path) -> OpDefinition:
    """Read a definition from a YAML or JSON file; a file of ``conf/op`` may name it in its first lines.

    Raises:
        ConfigError: the file cannot be read, or is no definition.
    """
    import yaml  # imported here: a dispatcher gets definitions from models and needs no YAML

    try:
        values = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, yaml.YAMLError) as e:
        raise ConfigError(f"{path}: must be a readable YAML file: {' '.join(str(e).split())}") from e
    return _checked(values, str(path))


def _from_conf(op: str) -> OpDefinition | None:
    path = conf_file("op", op)
    return None if path is None else _named(read_definition(path), op, str(path))


def _from_packages(op: str) -> OpDefinition | None:
    for point in metadata.entry_points(group=ENTRY_POINTS, name=op):
        where = f"entry point {point.value} of {ENTRY_POINTS}"
        try:
            found: object = point.load()
            found = found() if callable(found) else found
        except (ImportError, AttributeError) as e:
            raise ConfigError(f"{where}: cannot be loaded: {e}") from e
        if not isinstance(found, OpDefinition):
            found = _checked(found, where)
        return _named(found, op, where)
    return None


def _checked(values: object, where: str) -> OpDefinition:
    try:
        return OpDefinition.from_dict(values if isinstance(values, Mapping) else {})
    except ConfigError as e:
        raise ConfigError(f"{where}: {e}") from e


def _named(definition: OpDefinition, op: str, where: str) -> OpDefinition:
    if definition.name != op:
        raise ConfigError(f"{where}: name must be {op}, got {definition.name}")
    return definition


def _difference(known: OpDefinition | None, other: OpDefinition) -> str:
    """Return the first column in which two definitions differ, in words."""
    if known is None:
        return " (it is built in)"
    for part in ("problem", "config"):
        mine, theirs = dict(getattr(known, part)), dict(getattr(other, part))
        for name in dict.fromkeys([*mine, *theirs]):
            if mine.get(name) != theirs.get(name):
                return f" ({part} column {name} is {mine.get(name, 'missing')}, here {theirs.get(name, 'missing')})"
    return " (their order differs)"

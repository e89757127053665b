"""Ops of the user's own that a command names before any file of the project does.

``tilewise ingest`` makes the definition of a new op from a table, ``tilewise init`` takes one from a file, ``tilewise
collect`` and ``cache`` from a tuned kernel. They need it before the configuration is composed, which refuses unknown
ops.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from tilewise.conf_files import PROJECT, conf_file
from tilewise.errors import ConfigError, DataError
from tilewise.files import write_text
from tilewise.ops import OpDefinition, is_known, read_definition, register

if TYPE_CHECKING:
    from tilewise.data.importers.own_op import StatedColumns

ANNOUNCING = ("ingest", "init", "collect", "cache")
_EXPRESSIONS = ("flops", "bytes")


def announce(verb: str, overrides: Sequence[str]) -> tuple[str, ...]:
    """Register the op that a command of :data:`ANNOUNCING` introduces, and return its overrides with that op.

    Raises:
        ConfigError: the definition breaks a rule.
        DataError: a file to read is missing, or its columns cannot be told apart.
    """
    given = _values(overrides)
    op, source = given.get("op"), given.get("input")
    if verb == "init" and source:
        definition = read_definition(_existing(str(source)))
        register(definition)
        return (*(text for text in overrides if not text.startswith("op=")), f"op={definition.name}")
    if verb in ("collect", "cache"):
        return _with_op_of_kernel(given, overrides)
    if verb == "ingest" and source and isinstance(op, str) and not is_known(op):
        register(_definition_of_table(op, _existing(str(source)), given))
    return tuple(overrides)


def _with_op_of_kernel(given: Mapping[str, object], overrides: Sequence[str]) -> tuple[str, ...]:
    """Register the op of the tuned kernel that ``collect.kernel`` names, and choose it unless another one is named."""
    place = given.get("collect.kernel")
    if not place:
        return tuple(overrides)
    from tilewise.autotuning.op import find_kernel  # imports the user's module

    definition = find_kernel(str(place)).op.definition
    return (*overrides, *(() if {"op", "target"} & given.keys() else (f"op={definition.name}",)))


def stated_columns(problem: object, config: object, latency: object, unit: object) -> StatedColumns:
    """Return the columns that the keys of ``ingest`` name.

    Raises:
        ConfigError: a list of columns is no list of texts.
    """
    from tilewise.data.importers.own_op import StatedColumns

    return StatedColumns(_names("problem", problem), _names("config", config), str(latency or ""), str(unit or ""))


def keep_definition(definition: OpDefinition, folder: Path = Path()) -> Path | None:
    """Write a definition to a project's ``conf/op``; return the file, or None where the project has it.

    Raises:
        OSError: the folder cannot be written.
    """
    path = folder / PROJECT / "op" / f"{definition.name}.yaml"
    if path.is_file() or (folder == Path() and conf_file("op", definition.name)):
        return None
    write_text(path, definition_text(definition))
    return path


def definition_text(definition: OpDefinition) -> str:
    """Return the file of a definition."""
    head = "# An op of this project: docs/your-own-kernels.md of tilewise explains the keys.\n"
    return f"{head}{yaml.safe_dump(definition.to_dict(), sort_keys=False, default_flow_style=None, width=100)}"


def _definition_of_table(op: str, path: Path, given: dict[str, object]) -> OpDefinition:
    from tilewise.data.importers.own_op import define_from_table

    columns = stated_columns(*(given.get(f"ingest.{key}") for key in ("problem", "config", "latency", "unit")))
    expressions = {key: str(given[f"ingest.{key}"]) for key in _EXPRESSIONS if given.get(f"ingest.{key}")}
    return define_from_table(path, op, columns, expressions)[0]


def _values(overrides: Sequence[str]) -> dict[str, object]:
    """Return the values of overrides by key, as Hydra reads them."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from tilewise.cli.compose import clear_errors, quoted

    with clear_errors():
        parsed = OverridesParser.create().parse_overrides([quoted(text) for text in overrides if "=" in text])
    return {override.key_or_group: override.value() for override in parsed}


def _names(key: str, value: object) -> tuple[str, ...]:
    names = [value] if isinstance(value, str) else [] if value is None else value
    try:
        columns = tuple(str(getattr(name, "text", name)) for name in names)  # type: ignore[attr-defined]
    except TypeError:
        got = ",".join(map(str, getattr(value, "list", [value])))  # unquoted, M,N is a sweep to Hydra
        raise ConfigError(f"{key} must be a list of columns in brackets, such as '{key}=[M,N,K]', got {got}") from None
    return columns


def _existing(path: str) -> Path:
    if not Path(path).exists():
        raise DataError(f"input={path}: no such file or folder")
    return Path(path)

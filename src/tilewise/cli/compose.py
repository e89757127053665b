"""Composition of the configuration: the command line, DVC and MLflow all turn overrides into one with :func:`compose`.

Two overrides are tilewise's own; :func:`expand` rewrites them into plain Hydra overrides:

* ``params=params.yaml`` starts from a composed file. DVC tracks that file, so the stages must read it. The file holds
  no interpolations, so it is read as the overrides that make conf/ equal to it, and derived values stay derived.
* ``target=NAME`` chooses op, variant, dtype and arch by the target's name.

Tuned settings of a target (:mod:`tilewise.cli._tuned`) are an option of the group ``tuned``, which conf/config.yaml
chooses by the target's name, so that params.yaml, DVC and MLflow show the values that are used. A setting of the model
that the caller sets is not searched by tuning either, unless the caller sets its range, too.

``python -m tilewise.cli.compose [-o FILE] [overrides]`` writes params.yaml (``make params``). With ``--section model``
it writes the settings of a target's training: DVC trains a target again if they change.
"""

from __future__ import annotations

import argparse
import copy
import difflib
import json
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import TypeAlias, cast

import hydra
import yaml
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, OverrideParseException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from tilewise.cli._tuned import tuned_values
from tilewise.cli.project.search_path import add_project, variant_of_own_op
from tilewise.conf_files import conf_dirs, conf_groups, conf_options
from tilewise.errors import ConfigError
from tilewise.files import write_text
from tilewise.ops import OPS, Target, definition_of

__all__ = [
    "changed_settings",
    "clear_errors",
    "compose",
    "expand",
    "group_options",
    "overrides_for",
    "params_text",
    "part_of",
    "quoted",
    "to_text",
    "tuned_values",
]

Plain: TypeAlias = "bool | int | float | str | list[Plain] | dict[str, Plain] | None"

_TARGET_GROUPS = ("op", "variant", "dtype", "arch")
# Keys whose value may be null ("without"). Elsewhere null would fail later, with a less clear error.
_MAY_BE_NULL = "gate.floors."
# Keys that are null by default and otherwise texts. The first two groups also take a list, or a number of a version.
_LISTS = ("input", "collect.problems", "ingest.problem", "ingest.config")
_VERSIONS = ("a", "b", "version")
_TEXTS = (
    *("out", "output", "html", "filter", "mode", "warm_start", "params"),
    *("tracking.uri", "plan.requests", "gate.shadow", "tune.storage", "tune.study", "cluster.tls"),
    *(f"collect.{name}" for name in ("like", "simulate", "libraries", "memory", "plan", "store")),
    *(f"ingest.{name}" for name in ("latency", "unit", "flops", "bytes")),
)
_RAW = ("filter", "ingest.flops", "ingest.bytes")  # expressions, which need no quotes other than the shell's
_ADDED = "++"  # Hydra's prefix for "set or add": an option of a group may have keys that the default lacks


def compose(overrides: Sequence[str] = ()) -> DictConfig:
    """Return the configuration for `overrides`: read-only, with every interpolation resolved.

    Raises:
        ConfigError: an override does not parse, has an unknown key or option, or a value of the wrong kind.
    """
    plain = expand(overrides)
    cfg = copy.deepcopy(_compose(tuple(plain)))
    _check_kinds(cfg, plain)
    Target(*(cfg[group].name for group in _TARGET_GROUPS))  # refuses a variant that the op does not have
    tuned_values(cfg.target)  # checks the file
    _keep_from_search(cfg, plain)
    OmegaConf.set_readonly(cfg, True)
    return cfg


def params_text(overrides: Sequence[str] = ()) -> str:
    """Return the YAML of params.yaml for `overrides`; ``dvc exp run`` writes the same bytes.

    Raises:
        ConfigError: as :func:`compose`.
    """
    compose(overrides)  # checks the overrides
    return to_text(_compose(tuple(expand(overrides))))


def expand(overrides: Sequence[str]) -> list[str]:
    """Return `overrides` as plain Hydra overrides, with ``params=``, ``target=`` and JSON objects rewritten.

    Raises:
        ConfigError: an override has no ``=``, the file of ``params=`` is missing or not a composed configuration, or
            the target is unknown or contradicts another override.
    """
    given = [_split(text) for text in overrides]
    own = {key: value for key, value in given if key in ("params", "target")}
    rest = [(key, _from_json(value) if key not in _RAW else _raw(value)) for key, value in given if key not in own]
    chosen = {key: value for key, value in rest if key in group_options() and value is not None}
    if "target" in own:
        chosen |= _target_choices(own["target"] or "", chosen)
    values = _read_params(Path(own["params"] or "")) if "params" in own else []
    started = {key: value for key, value in values if key in _TARGET_GROUPS}
    changed_groups = {group for group, option in chosen.items() if started.get(group) != option}
    chosen |= variant_of_own_op(started, chosen)
    choices = started | chosen
    settings = [(key, value) for key, value in values if key not in started and _group(key) not in changed_groups]
    rest = [(key, value) for key, value in rest if key not in choices]
    return [key if value is None else f"{key}={value}" for key, value in [*choices.items(), *settings, *rest]]


def overrides_for(cfg: DictConfig, sections: Sequence[str]) -> list[str]:
    """Return the overrides that reproduce these sections of `cfg`, whatever is tuned for its target later."""
    start = [f"target={cfg.target}", "tuned=none"]
    return [*start, *_differences(cfg, start, sections)]


def changed_settings(cfg: DictConfig, sections: Sequence[str]) -> list[str]:
    """Return the settings in these sections of `cfg` that are not those of its target, as overrides."""
    return _differences(cfg, [f"target={cfg.target}"], sections)


def _differences(cfg: DictConfig, start: Sequence[str], sections: Sequence[str]) -> list[str]:
    base = dict(_leaves(_plain(_compose(tuple(expand(start))))))
    return [
        f"{key}={_literal(value)}"
        for key, value in _leaves(_plain(cfg))
        if key.split(".", 1)[0] in sections and _differs(base, key, value)
    ]


def part_of(cfg: DictConfig, package: str) -> DictConfig:
    """Return the mapping of `cfg` below the key `package`; "" means all of it.

    Raises:
        ConfigError: there is no such mapping.
    """
    part = OmegaConf.select(cfg, package) if package else cfg
    if not isinstance(part, DictConfig):
        raise ConfigError(f"--package must be a key with keys below it, such as model; got {package!r}")
    return part


def to_text(cfg: DictConfig) -> str:
    """Return `cfg` as YAML."""
    return OmegaConf.to_yaml(cfg)


def group_options() -> dict[str, list[str]]:
    """Return the options of each group of conf/."""
    options = {group: [*conf_options(group)] for group in conf_groups()}
    return options | {"op": sorted({*options["op"], *(name for name in OPS if definition_of(name))})}


def _compose(plain: tuple[str, ...]) -> DictConfig:
    add_project()
    return _composed(tuple(str(folder.resolve()) for folder in conf_dirs()), plain)


@lru_cache(maxsize=32)  # one command composes the same base several times, at 0.1 s each
def _composed(folders: tuple[str, ...], plain: tuple[str, ...]) -> DictConfig:
    with clear_errors(), _no_hydra_around(), hydra.initialize_config_dir(folders[-1], version_base="1.3"):
        cfg = hydra.compose("config", overrides=list(plain))
        OmegaConf.resolve(cfg)
    return cfg


def _keep_from_search(cfg: DictConfig, plain: Sequence[str]) -> None:
    """Take settings of the model that the caller sets out of the space that tuning searches.

    The caller is an override, an experiment or params.yaml. A range that is set, too, stays.
    """
    given = {override.key_or_group for override in _parse(plain)}
    choices = {*_TARGET_GROUPS, "tuned", "model"}
    base = _compose(tuple(text for text in plain if text.partition("=")[0] in choices))
    for name in cfg.tune.space or ():
        is_set = f"model.{name}" in given or cfg.model[name] != base.model[name]
        if is_set and not given & {"tune", "tune.space", f"tune.space.{name}"}:
            cfg.tune.space[name] = None


@contextmanager
def clear_errors() -> Iterator[None]:
    """Turn the long errors of Hydra, OmegaConf and YAML into a :class:`ConfigError` of one line."""
    try:
        yield
    except yaml.MarkedYAMLError as error:
        raise ConfigError(f"{_file_of(error)}: cannot read it: {' '.join(str(error).split())}") from error
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_explain(error)) from error


@contextmanager
def _no_hydra_around() -> Iterator[None]:
    """Allow initialising Hydra inside a multirun's job, where Hydra is active already."""
    singleton = GlobalHydra.instance()
    outer, singleton.hydra = singleton.hydra, None
    try:
        yield
    finally:
        singleton.hydra = outer


# --- tilewise's overrides ---------------------------------------------------------------------------------------------


def _split(text: str) -> tuple[str, str | None]:
    """Split an override into key and value; a deletion (``~key``) has no value."""
    key, equals, value = text.partition("=")
    if not equals and not text.startswith("~"):
        raise ConfigError(f"{text!r} is not an override; expected key=value")
    return key, value if equals else None


def _from_json(value: str | None) -> str | None:
    """Rewrite a JSON object in Hydra's grammar (keys without quotes); return any other value unchanged."""
    if value is None or not value.startswith("{"):
        return value
    try:
        return _literal(json.loads(value))
    except json.JSONDecodeError:
        return value


def quoted(override: str) -> str:
    """Return an override as Hydra takes it: expressions as texts, JSON objects in its grammar."""
    key, value = _split(override)
    return override if value is None else f"{key}={_raw(value) if key in _RAW else _from_json(value)}"


def _raw(value: str | None) -> str | None:
    """Quote a text so that Hydra does not parse it."""
    return value if value in (None, "", "null") else _literal(value)


def _target_choices(name: str, chosen: Mapping[str, str]) -> dict[str, str]:
    target = Target.parse(name)
    choices = {group: getattr(target, group) for group in _TARGET_GROUPS}
    for group, option in choices.items():
        if chosen.get(group, option) != option:
            raise ConfigError(
                f"target={name} means {group}={option}, but {group}={chosen[group]} is set, too; remove one of them"
            )
    return choices


def _read_params(path: Path) -> list[tuple[str, str]]:
    """Return the overrides that make conf/ equal to the composed file at `path`."""
    try:
        values = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"params={path}: cannot read it: {' '.join(str(error).split())}") from error
    try:
        choices = {group: str(values[group]["name"]) for group in _TARGET_GROUPS}
    except (KeyError, TypeError) as error:
        raise ConfigError(f"params={path}: not a composed configuration ('make params' writes one)") from error
    base = dict(_leaves(_plain(_compose(tuple(f"{key}={value}" for key, value in choices.items())))))
    differences = [(f"{_ADDED}{key}", _literal(value)) for key, value in _leaves(values) if _differs(base, key, value)]
    return [*choices.items(), *differences]


def _differs(base: Mapping[str, Plain], key: str, value: Plain) -> bool:
    return key not in base or type(base[key]) is not type(value) or base[key] != value


def _group(key: str) -> str:
    """Return the first part of a setting's key, which is the name of its group if it has one."""
    return key.removeprefix(_ADDED).split(".", 1)[0]


def _plain(cfg: DictConfig) -> dict[str, Plain]:
    return cast("dict[str, Plain]", OmegaConf.to_container(cfg))


def _leaves(values: Mapping[str, Plain], prefix: str = "") -> Iterator[tuple[str, Plain]]:
    """Yield dotted key and value of every leaf; an empty mapping is a leaf."""
    for key, value in values.items():
        if isinstance(value, dict) and value:
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}", value


def _literal(value: Plain) -> str:
    """Return `value` in the grammar of Hydra's overrides."""
    if isinstance(value, str):
        # a backslash is literal unless a quote follows
        return "'" + re.sub(r"(\\*)('|$)", lambda m: m[1] * 2 + ("\\'" if m[2] else ""), value) + "'"
    if isinstance(value, list):
        return f"[{','.join(map(_literal, value))}]"
    if isinstance(value, dict):
        return f"{{{','.join(f'{key}:{_literal(item)}' for key, item in value.items())}}}"
    return "null" if value is None else str(value).lower()


# --- errors in overrides -----------------------------------------------------------------------------------


def _check_kinds(cfg: DictConfig, plain: Sequence[str]) -> None:
    """Refuse a value of another kind than the one in conf/: ``n_splits=abc`` would fail much later."""
    parsed = [override for override in _parse(plain) if not override.is_add() and not override.is_delete()]
    groups = group_options()
    base = _compose(tuple(str(override.input_line) for override in parsed if override.key_or_group in groups))
    for override in parsed:
        key = override.key_or_group
        expected, value = OmegaConf.select(base, key), OmegaConf.select(cfg, key)
        nullable = expected is None or (value is None and key.startswith(_MAY_BE_NULL))
        if key not in groups and not nullable and not _same_kind(expected, value):
            example = " such as '" + key + "={a:1}'" if OmegaConf.is_dict(expected) else ""
            example = f" such as '{key}=[1,2]'" if OmegaConf.is_list(expected) else example
            raise ConfigError(f"{key} must be {_kind(expected)}{example}, got {value!r}")
        if expected is None and value is not None:
            _check_optional(key, value)


def _check_optional(key: str, value: object) -> None:
    """Refuse a value of another kind than a key takes whose default is null."""
    lists = OmegaConf.is_list(value) and all(isinstance(item, str) for item in cast("Sequence[object]", value))
    allowed = isinstance(value, str) or (key in _LISTS and lists) or (key in _VERSIONS and isinstance(value, int))
    if key in (*_TEXTS, *_LISTS, *_VERSIONS) and not allowed:
        also = " or a list of texts" if key in _LISTS else " or a whole number" if key in _VERSIONS else ""
        raise ConfigError(
            f"{key} must be a text{also}, got {value!r}; quote it twice if it is one: '{key}=\"{value}\"'"
        )


def _parse(plain: Sequence[str]) -> list[Override]:
    return OverridesParser.create().parse_overrides(list(plain))


def _same_kind(expected: object, value: object) -> bool:
    return _kind(expected) == _kind(value) or (_kind(expected) == "a number" and _kind(value) == "a whole number")


def _kind(value: object) -> str:
    if OmegaConf.is_dict(value):
        return "a mapping"
    if OmegaConf.is_list(value):
        return "a list"
    # bool before int: True is an int
    kinds = ((bool, "true or false"), (int, "a whole number"), (float, "a number"), (str, "a text"))
    return next((kind for type_, kind in kinds if isinstance(value, type_)), "null")


def _explain(error: Exception) -> str:
    """Return one line for an error of Hydra or OmegaConf."""
    text = str(error)
    if isinstance(error, OverrideParseException):
        return f"cannot read {error.override!r}: {text.splitlines()[0]}; put special characters in quotes"
    missing = re.search(r"Could not find '([^'/]+)/([^']+)'", text)
    if missing:
        group, option = missing.groups()
        return f"{group}={option} is unknown; {group} has {', '.join(group_options().get(group, []))}"
    unknown = re.search(r"Could not override '([^']+)'", text)
    if unknown:
        key = unknown[1].split("@")[0]
        keys = [*group_options(), *(leaf for leaf, _ in _leaves(_plain(_compose(()))))]
        near = difflib.get_close_matches(key, keys, n=1, cutoff=0.5)
        remedy = f"did you mean {near[0]!r}?" if near else "--cfg prints all keys"
        return f"{key!r} is not a key of the configuration; {remedy}"
    return " ".join(text.split())


def _file_of(error: yaml.MarkedYAMLError) -> str:
    return str(error.problem_mark.name) if error.problem_mark else "conf"


def _main(argv: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tilewise.cli.compose", description="Compose conf/ into one file.")
    parser.add_argument("-o", "--output", type=Path, help="file to write; standard output otherwise")
    parser.add_argument("--section", help="only this section, with the settings that were tuned for the target")
    parser.add_argument("overrides", nargs="*")
    args = parser.parse_args(argv)
    text = to_text(compose(args.overrides)[args.section]) if args.section else params_text(args.overrides)
    if args.output:
        write_text(args.output, text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    from tilewise.cli.main import reporting_errors  # not at the top: main imports this module when it runs a verb

    raise SystemExit(reporting_errors(lambda: _main(sys.argv[1:])))

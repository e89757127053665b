"""Tuned settings of targets: ``conf/tuned/<target>.yaml`` holds the committed differences to ``conf/model``.

Such a file is an option of the group ``tuned``, which Hydra chooses by the target's name. ``tuned=none`` leaves it out.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from tilewise.conf_files import conf_dir, conf_file, writable_conf_dir
from tilewise.errors import ConfigError
from tilewise.files import write_text

if TYPE_CHECKING:
    from tilewise.train import ModelSettings

_DEFAULT = "default"


def tuned_path(target: str) -> Path:
    """Return the path of the settings of `target`; the file may be missing. A new one belongs to the project."""
    return conf_file("tuned", target) or writable_conf_dir() / "tuned" / f"{target}.yaml"


def tuned_values(target: str) -> dict[str, object]:
    """Return the model settings of `target` that differ from the defaults; empty if it has no file.

    Raises:
        ConfigError: the file is not a mapping, or has a key that the defaults lack.
    """
    path = tuned_path(target)
    if not path.is_file():
        return {}
    values, known = _read(path), default_values()
    for key in values:
        if key not in known:
            raise ConfigError(f"{path}: {key!r} is not a setting of the model; known are {', '.join(known)}")
    return values


def default_values() -> dict[str, object]:
    """Return the model settings of targets without tuned ones."""
    return _read(conf_file("model", _DEFAULT) or conf_dir() / "model" / f"{_DEFAULT}.yaml")


def write_tuned(target: str, model: ModelSettings, origin: str) -> Path | None:
    """Write the settings of `model` that differ from the defaults, as the tuned settings of `target`.

    Args:
        target: the target's name.
        model: all settings.
        origin: lines of a comment: the study that found the settings.

    Returns:
        The file, or None if nothing differs; an earlier file is removed then.
    """
    path = tuned_path(target)
    settings = dataclasses.asdict(model) | {"extra_labels": list(model.extra_labels)}
    values = {key: settings[key] for key, value in default_values().items() if settings[key] != value}
    if not values:
        path.unlink(missing_ok=True)
        return None
    about = ["@package model", f"Settings that tuning found for {target}.", *origin.splitlines()]
    write_text(path, "".join(f"# {line}\n" for line in about) + yaml.safe_dump(values, sort_keys=False))
    return path


def _read(path: Path) -> dict[str, object]:
    try:
        values = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot read it: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: not a mapping of settings")
    return values

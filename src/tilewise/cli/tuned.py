"""What tuning found for a target, committed: ``conf/model/<target>.yaml``, the differences to ``default.yaml``.

Such a file is an option of the group ``model``, but needs no choosing: :func:`tilewise.cli.compose.compose` takes it
for its target, ``tuned=false`` leaves it aside.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from tilewise.arch import conf_dir
from tilewise.errors import ConfigError
from tilewise.files import write_text

if TYPE_CHECKING:
    from tilewise.train.settings import ModelSettings

_DEFAULT = "default"


def tuned_path(target: str) -> Path:
    """Where the settings of `target` are, if there are any."""
    return conf_dir() / "model" / f"{target}.yaml"


def tuned_values(target: str) -> dict[str, Any]:
    """The model settings of `target` that differ from the default's; none where nothing was kept.

    Raises:
        ConfigError: its file is no mapping, or has a key that the default lacks.
    """
    path = tuned_path(target)
    if not path.is_file():
        return {}
    values, known = _read(path), default_values()
    values.pop("defaults", None)
    for key in values:
        if key not in known:
            raise ConfigError(f"{path}: {key!r} is no setting of the model; it has {', '.join(known)}")
    return values


def default_values() -> dict[str, Any]:
    """The model settings of targets that nothing was found for."""
    return _read(conf_dir() / "model" / f"{_DEFAULT}.yaml")


def write_tuned(target: str, model: ModelSettings, origin: str) -> Path | None:
    """Keep what `model` has other than the default; None, and no file of `target`, where that is nothing.

    Args:
        target: its name.
        model: all settings.
        origin: the study that found them, lines of a comment.
    """
    path = tuned_path(target)
    found = dataclasses.asdict(model) | {"extra_labels": list(model.extra_labels)}
    values = {key: found[key] for key, value in default_values().items() if found[key] != value}
    if not values:
        path.unlink(missing_ok=True)
        return None
    comment = "".join(f"# {line}\n" for line in [f"What tuning found for {target}.", *origin.splitlines()])
    settings = yaml.safe_dump(values, sort_keys=False)
    write_text(path, f"{comment}defaults: [{_DEFAULT}, _self_]\n{settings}")
    return path


def _read(path: Path) -> dict[str, Any]:
    try:
        values = yaml.safe_load(path.read_text())
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{path}: cannot read it: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"{path}: not a mapping of settings")
    return values

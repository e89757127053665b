"""The folders of the Hydra configuration: the one that tilewise ships, and the one of the user's project.

A project's folder holds only what differs: ops of its own (``conf/op/my_matmul.yaml``), archs, tuned settings.
"""

from __future__ import annotations

import os
from pathlib import Path

from tilewise.errors import ConfigError

_ROOT = "config.yaml"
PROJECT = Path("conf")  # in the current folder

_MAX_NAME = 100  # of an option; a file system takes no names without end


def conf_dir() -> Path:
    """Return the folder of the Hydra configuration.

    ``TILEWISE_CONF`` wins over the folder of the installed package, which wins over that of the repository.

    Raises:
        ConfigError: the folder that ``TILEWISE_CONF`` names has no ``config.yaml``.
    """
    installed = Path(__file__).parent / "conf"
    own = installed if installed.is_dir() else Path(__file__).parents[2] / "conf"
    chosen = Path(os.environ.get("TILEWISE_CONF") or own)
    if not (chosen / _ROOT).is_file():
        raise ConfigError(f"TILEWISE_CONF={chosen}: must hold a config.yaml; copy {own} there and edit the copy")
    return chosen


def project_conf_dir() -> Path | None:
    """Return the project's folder of settings, or None where the current folder is no project.

    It is ``conf`` with a folder ``op``, and without a ``config.yaml``: other programs that use Hydra have one.
    """
    return PROJECT if (PROJECT / "op").is_dir() and not (PROJECT / _ROOT).exists() else None


def conf_dirs() -> tuple[Path, ...]:
    """Return the folders of the configuration; files of an earlier one win.

    Raises:
        ConfigError: as for :func:`conf_dir`.
    """
    project = project_conf_dir()
    return (conf_dir(),) if project is None else (project, conf_dir())


def writable_conf_dir() -> Path:
    """Return the folder that settings of the project are written to."""
    return conf_dirs()[0]


def conf_file(group: str, name: str) -> Path | None:
    """Return the file of one option of a group; None if no folder has it."""
    if len(name) > _MAX_NAME or not name.replace("-", "_").isidentifier():  # the name of an option is no path
        return None
    files = (folder / group / f"{name}.yaml" for folder in conf_dirs())
    return next((path for path in files if path.is_file()), None)


def conf_options(group: str) -> tuple[str, ...]:
    """Return the sorted names of a group's options."""
    return tuple(sorted({path.stem for folder in conf_dirs() for path in (folder / group).glob("*.yaml")}))


def conf_groups() -> tuple[str, ...]:
    """Return the sorted names of the groups."""
    return tuple(sorted({path.name for folder in conf_dirs() for path in folder.iterdir() if path.is_dir()}))

"""Where a model comes from, without times and machines: equal trainings write equal files."""

from __future__ import annotations

import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

UNKNOWN = "unknown"
# What decides a training, besides the installed libraries.
SOURCES = ("src", "conf", "data.dvc", "params.yaml")
LIBRARIES = ("lightgbm", "numpy", "optuna", "pandas", "scikit-learn", "tilewise")


def git_revision(folder: Path) -> str:
    """The last commit that touched :data:`SOURCES` in the repository around `folder`, or "unknown".

    Not HEAD: a commit that changes only text elsewhere must not change the model's files.
    """
    top = _git(folder, "rev-parse", "--show-toplevel")
    return (_git(Path(top), "log", "-1", "--format=%H", "--", *SOURCES) if top else "") or UNKNOWN


def library_versions() -> dict[str, str]:
    """Versions of the libraries that shape a model."""
    return {name: _version(name) for name in LIBRARIES}


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return UNKNOWN


def _git(folder: Path, *arguments: str) -> str:
    try:
        done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, text=True, timeout=20, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""

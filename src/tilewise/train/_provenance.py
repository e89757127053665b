"""Provenance of a model, without times and machines, so that equal trainings write equal files."""

from __future__ import annotations

import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

UNKNOWN = "unknown"
# Files that decide the outcome of a training, besides the installed libraries.
SOURCES = ("src", "conf", "data.dvc", "params.yaml")
LIBRARIES = ("lightgbm", "numpy", "optuna", "pandas", "scikit-learn", "tilewise")


def git_revision(folder: Path) -> str:
    """Return the last commit that touched :data:`SOURCES` in the repository around `folder`, or "unknown".

    HEAD would not do: a commit that changes only documentation must not change the model's files.
    """
    top = _git(folder, "rev-parse", "--show-toplevel")
    return (_git(Path(top), "log", "-1", "--format=%H", "--", *SOURCES) if top else "") or UNKNOWN


def source_changes(folder: Path) -> tuple[str, tuple[str, ...]]:
    """Return the commit that is checked out around `folder`, and the files of :data:`SOURCES` that differ from it.

    Outside a repository the commit is "unknown", and no file differs.
    """
    top = _git(folder, "rev-parse", "--show-toplevel")
    if not top:
        return UNKNOWN, ()
    changed = _git(Path(top), "status", "--porcelain", "--", *SOURCES).splitlines()
    return _git(Path(top), "rev-parse", "HEAD") or UNKNOWN, tuple(line.split(maxsplit=1)[-1] for line in changed)


def library_versions() -> dict[str, str]:
    """Return the versions of the libraries that affect a model."""
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

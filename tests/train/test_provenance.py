"""The revision is that of the last commit that matters to a training, and never an obstacle."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tilewise.train import git_revision
from tilewise.train._provenance import LIBRARIES, UNKNOWN, library_versions


def git(folder: Path, *arguments: str) -> str:
    identity = ("-c", "user.name=t", "-c", "user.email=t@example.org", "-c", "commit.gpgsign=false")
    done = subprocess.run(["git", *identity, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


def commit(folder: Path, name: str) -> str:
    (folder / name).parent.mkdir(exist_ok=True)
    (folder / name).write_text(name)
    git(folder, "add", name)
    git(folder, "commit", "-q", "--no-verify", "-m", name)
    return git(folder, "rev-parse", "HEAD")


def test_only_commits_that_touch_the_sources_count(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    assert git_revision(tmp_path) == UNKNOWN
    commit(tmp_path, "README.md")
    assert git_revision(tmp_path) == UNKNOWN
    code = commit(tmp_path, "src/a.py")
    commit(tmp_path, "notes.md")
    assert git_revision(tmp_path) == code
    assert git_revision(tmp_path / "src") == code
    assert git_revision(tmp_path) != commit(tmp_path, "params.yaml") == git_revision(tmp_path)


def test_no_repository_and_no_git_are_unknown(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    assert git_revision(tmp_path) == UNKNOWN
    monkeypatch.setenv("PATH", "")
    assert git_revision(tmp_path) == UNKNOWN


def test_versions_are_those_of_the_installed_libraries() -> None:
    import lightgbm

    versions = library_versions()
    assert tuple(versions) == LIBRARIES
    assert versions["lightgbm"] == lightgbm.__version__

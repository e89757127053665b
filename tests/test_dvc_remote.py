"""`dvc pull` refuses altered objects, by the committed configuration and by the settings in docs/storage.md."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[1]
CONFIG = ROOT / ".dvc" / "config"
TEXTS = (
    ROOT / "docs" / "storage.md",
    ROOT / "docs" / "servers.md",
    ROOT / "src" / "tilewise" / "servers" / "__main__.py",
)


def dvc(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "DVC_GLOBAL_CONFIG_DIR": str(folder / "none"), "DVC_SYSTEM_CONFIG_DIR": str(folder)}
    command = [sys.executable, "-m", "dvc", *words]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    """Return a project with the committed configuration, whose data is in the remote only."""
    assert dvc(tmp_path, "init", "--no-scm", "-q").returncode == 0
    shutil.copy(CONFIG, tmp_path / ".dvc" / "config")
    (tmp_path / ".dvc" / "config.local").write_text("[core]\n    no_scm = True\n")
    data = tmp_path / "data"
    data.mkdir()
    for name in ("a", "b"):
        (data / f"{name}.parquet").write_text(f"measurements {name}\n")
    for words in (("add", "data"), ("push", "data.dvc")):
        done = dvc(tmp_path, *words)
        assert done.returncode == 0, done.stderr
    shutil.rmtree(data)
    shutil.rmtree(tmp_path / ".dvc" / "cache")
    return tmp_path


def objects(clone: Path) -> list[Path]:
    found = sorted(p for p in (clone / "dvc-store").rglob("*") if p.is_file() and p.suffix != ".dir")
    assert len(found) == 2
    return found


def test_untouched_objects_are_pulled(clone: Path) -> None:
    done = dvc(clone, "pull", "data.dvc")
    assert done.returncode == 0, done.stderr
    assert [p.name for p in sorted((clone / "data").iterdir())] == ["a.parquet", "b.parquet"]


def test_an_altered_object_is_refused(clone: Path) -> None:
    """Of the same length, so that its size does not tell either."""
    altered = objects(clone)[0]
    altered.chmod(0o644)
    altered.write_text(altered.read_text().upper())
    done = dvc(clone, "pull", "data.dvc")
    assert done.returncode == 1
    assert "failed to pull data from the cloud" in done.stderr
    files = [p for top in ("data", ".dvc/cache") for p in (clone / top).rglob("*") if p.is_file()]
    assert not [p for p in files if "MEASUREMENTS" in p.read_text()]


def test_every_committed_remote_verifies() -> None:
    config = ConfigParser()
    config.read(CONFIG)
    remotes = [name for name in config.sections() if "remote" in name]
    assert remotes
    for name in remotes:
        assert config[name].getboolean("verify"), f"{name} of .dvc/config must have verify = true"


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.name)
def test_every_remote_that_a_text_adds_verifies(path: Path) -> None:
    text = path.read_text()
    added = re.findall(r"dvc remote add (?:--\w+ )*(\w+) ", text)
    assert added
    assert set(added) == set(re.findall(r"dvc remote modify (?:--\w+ )*(\w+) verify true", text))

"""Targets that are built as tasks leave the state of `dvc repro`."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tilewise.cli.models.repro import build_target, build_targets, longest_first
from tilewise.cluster import ClusterSettings
from tilewise.errors import ConfigError, TilewiseError

PIPELINE = """
stages:
  train:
    foreach: ${targets}
    do:
      cmd: cp src.txt model-${item} && sleep 1
      deps: [src.txt]
      outs:
        - model-${item}
  promote:
    foreach: ${targets}
    do:
      cmd: test ${item} != broken && cat model-${item} > report-${item}
      deps:
        - model-${item}
      outs:
        - report-${item}:
            cache: false
"""


def project(folder: Path, targets: list[str]) -> Path:
    folder.mkdir()
    (folder / "dvc.yaml").write_text(PIPELINE)
    (folder / "params.yaml").write_text(yaml.safe_dump({"targets": targets}))
    (folder / "src.txt").write_text("source")
    # All targets read the measurements, which have a stage of their own.
    for command in (["git", "init", "-q"], ["dvc", "init", "-q"], ["dvc", "add", "-q", "src.txt"]):
        subprocess.run(command, cwd=folder, check=True)
    return folder


def lock_of(folder: Path) -> object:
    return yaml.safe_load((folder / "dvc.lock").read_text())["stages"]


@pytest.mark.long
def test_the_lock_is_that_of_one_process(dask: Any, tmp_path: Path) -> None:
    here, there = (project(tmp_path / name, ["a", "b", "c"]) for name in ("here", "there"))
    build_targets(str(here), ["a", "b", "c"], ClusterSettings())
    build_targets(str(there), ["a", "b", "c"], ClusterSettings(kind="dask", address=dask.scheduler_address))
    assert lock_of(here) == lock_of(there)
    assert (there / "report-c").read_text() == "source"


def test_the_largest_is_begun_first(tmp_path: Path) -> None:
    for name, size in {"b/r1": 5, "b/r2": 6, "c/r1": 9, "bb/r1": 100}.items():
        file = tmp_path / "data" / f"{name}.parquet"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(bytes(size))
    assert longest_first(str(tmp_path), ["a", "b", "c"]) == ["b", "c", "a"]


@pytest.mark.long
def test_a_failed_stage_shows_its_output(tmp_path: Path) -> None:
    folder = project(tmp_path / "project", ["broken"])
    with pytest.raises(TilewiseError, match=r"repro .* promote@broken failed:[\s\S]*test broken != broken"):
        build_target(str(folder), "broken")


def test_a_host_without_the_folder_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"has no dvc.yaml on this host; workers must share"):
        build_target(str(tmp_path), "a")

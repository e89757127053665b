"""A user's own repository, with tilewise as an installed wheel: a table, a project, ``dvc repro``, a selection."""

from __future__ import annotations

import json
import os
import sys
import sysconfig
from pathlib import Path

import pytest
import yaml

import own_op
from building import ROOT, build, done, run

pytestmark = [pytest.mark.long, pytest.mark.timeout(1500), pytest.mark.xdist_group("wheel")]

TARGET = "my_product_universal_bf16_sm90"
PROBLEM = {"M": 512, "N": 4096, "K": 4096}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Install the wheel into a new environment, beside this one's libraries, and return the folder of its programs."""
    wheel = build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"), {"TILEWISE_BUILD": "require"})
    folder = tmp_path_factory.mktemp("installed") / "venv"
    done([sys.executable, "-m", "venv", folder], ROOT)
    done([folder / "bin" / "pip", "install", "--quiet", "--no-deps", "--no-index", wheel], folder)
    (site,) = (folder / "lib").glob("python*/site-packages")
    (site / "libraries.pth").write_text(sysconfig.get_path("purelib") + "\n")  # its own .pth files are not followed
    return folder / "bin"


def test_an_empty_folder_becomes_a_repository_that_selects(programs: Path, tmp_path: Path) -> None:
    own_op.recorded_table(problems=200, kernels=12).to_csv(tmp_path / "timings.csv", index=False)
    tilewise, python = programs / "tilewise", programs / "python"
    found = done([python, "-c", "import tilewise; print(tilewise.__file__)"], tmp_path)
    assert str(programs.parent) in found, "the wheel is imported, not the checkout"
    table = ["input=timings.csv", "op=my_product", "problem=[M,N,K]", "flops=2*M*N*K"]
    done([tilewise, "ingest", *table], tmp_path)
    done([tilewise, "init", "op=my_product"], tmp_path)
    done(["git", "init", "--quiet"], tmp_path)
    done([python, "-m", "dvc", "init", "--quiet"], tmp_path)
    params = yaml.safe_load((tmp_path / "params.yaml").read_text())
    params["tune"]["n_trials"] = 0
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    path = f"{programs}{os.pathsep}{os.environ['PATH']}"
    done([python, "-m", "dvc", "repro"], tmp_path, PATH=path, TILEWISE_CACHE=str(tmp_path / "cache"))
    assert [*yaml.safe_load((tmp_path / "dvc.lock").read_text())["stages"]] == [
        f"{stage}@{TARGET}" for stage in ("prepare", "train", "evaluate", "promote")
    ]
    metrics = json.loads((tmp_path / "reports" / TARGET / "metrics.json").read_text())["holdout"]
    assert metrics["mean_efficiency"] > 0.94
    problem = ",".join(f"{name}:{size}" for name, size in PROBLEM.items())
    selected = json.loads(
        done([tilewise, "select", f"target={TARGET}", f"problem={{{problem}}}"], tmp_path, TILEWISE_CACHE="cache")
    )
    assert (selected["why"], selected["model_version"]) == ("model", 1)
    again = run([python, "-m", "dvc", "status"], tmp_path, PATH=path)
    assert "prepare" not in again.stdout, "nothing but the stage that always runs is stale"
    code = (
        "from tilewise.dispatch import Dispatcher\n"
        f"with Dispatcher.from_registry({TARGET!r}, uri='sqlite:///{tmp_path}/mlflow.db') as d:\n"
        f"    print(d.select({PROBLEM!r}).kernel_name)\n"
    )
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    chosen = done([python, "-c", code], elsewhere, TILEWISE_CACHE=str(elsewhere / "cache"))
    assert chosen.strip() == selected["kernel_name"], "another folder, without the definition"

"""The command of DVC's stage promote: its decision, its output and its exit status say the same."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from small_model import table, write_model
from store import fresh_store
from synthetic import CONV

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[2]
COMMAND: str = yaml.safe_load((ROOT / "dvc.yaml").read_text())["stages"]["promote"]["do"]["cmd"]
FAULT = re.compile(r"error|traceback|fail|exception|not found", re.IGNORECASE)

Run = Callable[[float], subprocess.CompletedProcess[str]]


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """Return a folder with measurements, an empty registry, and parameters for the few problems of tests."""
    params = yaml.safe_load((ROOT / "params.yaml").read_text())
    params["gate"]["min_problems"] = 5
    params["gate"]["floors"]["grouped_conv"]["forward"] = {"mean": 80, "p10": 50}
    params["gate"]["override"]["reason"] = "small tables of tests"
    (tmp_path / "params.yaml").write_text(yaml.safe_dump(params))
    prepared = tmp_path / "build" / "prepared"
    prepared.mkdir(parents=True)
    table().to_parquet(prepared / f"{CONV}.parquet")
    fresh_store(tmp_path / "store")
    return tmp_path


@pytest.fixture
def run(project: Path) -> Run:
    """Run the stage's command, as DVC does, with a model of the given skill."""

    def _run(sign: float) -> subprocess.CompletedProcess[str]:
        write_model(project / "models" / CONV, sign=sign)
        uri = f"sqlite:///{project / 'store' / 'mlflow.db'}"
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = os.environ | {"PATH": path, "MLFLOW_TRACKING_URI": uri}
        command = COMMAND.replace("${item}", CONV)
        return subprocess.run(command, shell=True, cwd=project, env=environment, capture_output=True, text=True)

    return _run


def outcome(project: Path) -> str:
    return str(json.loads((project / "reports" / CONV / "promotion.json").read_text())["outcome"])


def test_a_refusal_is_a_result_and_does_not_look_like_a_fault(run: Run, project: Path) -> None:
    promoted = run(1.0)
    assert (promoted.returncode, promoted.stderr, outcome(project)) == (0, "", "promoted")
    refused = run(-1.0)
    assert (refused.returncode, outcome(project)) == (0, "refused")
    assert refused.stderr.startswith("tilewise: refused: ")
    assert FAULT.search(refused.stdout + refused.stderr) is None


def test_a_fault_stops_the_stage(run: Run, project: Path) -> None:
    (project / "build" / "prepared" / f"{CONV}.parquet").write_bytes(b"no table")
    stopped = run(1.0)
    assert stopped.returncode != 0
    assert stopped.stderr.startswith("tilewise: error: ")
    assert not (project / "reports").exists()

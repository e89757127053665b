"""``mlflow.pyfunc.load_model`` and ``mlflow models serve``: from text and JSON alone, and never from damaged files."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlflow
import pandas as pd
import pytest
import requests

import tilewise
from registry.server import START_S, stop, wait_for
from small_model import write_model
from synthetic import CONV
from tilewise.errors import ArtefactError
from tilewise.model import Predictor, TrainedModel, load_artefact
from tilewise.ops import GroupedConvProblem
from tilewise.registry import PRODUCTION, set_alias
from tilewise.registry._packed_model import PACKED, unpack
from tilewise.registry.promotion import publish
from tilewise.servers._service_process import free_ports

PROBLEM: dict[str, Any] = {"N": 8, "C": 64, "K": 64, "G": 1, "Hi": 28, "Wi": 28, "Y": 3, "X": 3, "pad_h": 1, "pad_w": 1}

ENVIRONMENT_S = 1000.0  # to install MLflow's requirements

UNPADDED: dict[str, Any] = {name: size for name, size in PROBLEM.items() if not name.startswith("pad")}


@pytest.fixture
def stored(registry: str, tmp_path: Path) -> Path:
    """Return the folder of a registered model's files, in the registry's own store."""
    set_alias(publish(write_model(tmp_path / "model")), PRODUCTION)
    return next((tmp_path / "store").rglob("selftest.json")).parent


@contextmanager
def served(registry: str, folder: Path, *manager: str) -> Iterator[str]:
    """Serve the model in production by MLflow's command, and return where it answers."""
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "mlflow", "models", "serve", "-m", f"models:/{CONV}@production"]
    command += [*manager, "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    environment = {**os.environ, "MLFLOW_TRACKING_URI": registry, "MLFLOW_ENV_ROOT": str(folder), "PATH": path}
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for(f"http://127.0.0.1:{port}/ping", process, START_S if "local" in manager else ENVIRONMENT_S)
        yield f"http://127.0.0.1:{port}/invocations"
    finally:
        stop(process)


def _figures(model: TrainedModel, problem: GroupedConvProblem, kernel: str) -> dict[str, float]:
    """Return the predicted columns of an answer."""
    (predicted,) = Predictor(model).predict(problem, [kernel])
    return {f"predicted_{name}": value for name, value in predicted.figures().items()}


def test_a_row_may_name_its_kernel_and_its_dtype(stored: Path) -> None:
    model, problem = load_artefact(stored), GroupedConvProblem(**PROBLEM)
    loaded = mlflow.pyfunc.load_model(f"models:/{CONV}@production")
    slow = model.pool.names[model.rank(problem)[-1]]
    found = loaded.predict(pd.DataFrame([{**PROBLEM, "kernel_name": slow, "dtype": "bf16"}, {**PROBLEM}]))
    best = model.pool.names[model.rank(problem)[0]]
    expected = [{"kernel_name": name, **_figures(model, problem, name)} for name in (slow, best)]
    assert found.to_dict("records") == expected
    with pytest.raises(Exception, match="row 0: dtype: must be bf16"):
        loaded.predict(pd.DataFrame([{**PROBLEM, "dtype": "fp16"}]))
    with pytest.raises(Exception, match="row 0: 'nonsense' names no kernel"):
        loaded.predict(pd.DataFrame([{**PROBLEM, "kernel_name": "nonsense"}]))


@pytest.mark.long
def test_a_served_model_answers_over_http(stored: Path, registry: str, tmp_path: Path) -> None:
    with served(registry, tmp_path, "--env-manager", "local") as url:
        good = requests.post(url, json={"dataframe_records": [PROBLEM]}, timeout=60)
        bad = requests.post(url, json={"dataframe_records": [{**PROBLEM, "G": 3}]}, timeout=60)
        mixed = requests.post(url, json={"dataframe_records": [PROBLEM, UNPADDED]}, timeout=60)
    model, problem = load_artefact(stored), GroupedConvProblem(**PROBLEM)
    best = model.rank(problem, 1)[0]
    assert good.status_code == 200, good.text
    assert good.json() == {
        "predictions": [{"kernel_name": model.pool.names[best], **_figures(model, problem, model.pool.names[best])}]
    }
    assert mixed.status_code == 200, mixed.text
    assert [row["kernel_name"] for row in mixed.json()["predictions"]] == [
        model.pool.names[model.rank(GroupedConvProblem(**p), 1)[0]] for p in (PROBLEM, UNPADDED)
    ]
    assert bad.status_code == 400
    assert bad.json()["error_code"] == "INVALID_PARAMETER_VALUE"
    assert bad.json()["message"].endswith("Error: row 0: C: must be divisible by G = 3, got 64")
    assert "stack_trace" not in bad.json()


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_a_model_is_served_from_an_environment_of_its_own(stored: Path, registry: str, tmp_path: Path) -> None:
    """MLflow's default: no index has tilewise, but the wheel among the model's files is installed."""
    (tmp_path / "environments").mkdir()
    with served(registry, tmp_path / "environments") as url:
        answer = requests.post(url, json={"dataframe_records": [PROBLEM]}, timeout=60)
    best = load_artefact(stored).rank(GroupedConvProblem(**PROBLEM), 1)[0]
    assert answer.json()["predictions"][0]["kernel_name"] == load_artefact(stored).pool.names[best]
    environments = tmp_path / "environments"
    installed = next(environments.rglob("site-packages/tilewise/__init__.py"))
    assert not list(installed.parent.rglob("*.so"))


@pytest.mark.long
@pytest.mark.parametrize(
    ("installer", "found"),
    [
        (["pip", "install", "--force-reinstall"], "Would install .*tilewise-{}"),
        (["uv", "pip", "install", "--reinstall", "--python", sys.executable], r"\+ tilewise=={}"),
    ],
    ids=["pip", "uv"],
)
def test_its_requirements_name_the_wheel_from_any_folder(
    stored: Path, tmp_path: Path, installer: list[str], found: str
) -> None:
    """MLflow's images install them from a folder that is not the model's."""
    program = Path(sys.executable).with_name(installer[0])
    command = [
        str(program),
        *installer[1:],
        "--dry-run",
        "--no-deps",
        "-r",
        str(stored.parents[1] / "requirements.txt"),
    ]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    version = re.escape(f"{tilewise.__version__}+m") + "[0-9a-f]{12}"
    assert re.search(found.format(version), done.stdout + done.stderr)


@pytest.mark.long
@pytest.mark.parametrize(
    "rows",
    [
        [PROBLEM, UNPADDED],
        [UNPADDED],
        [{**PROBLEM, "pad_h": None, "pad_w": None}],
        [PROBLEM, {**PROBLEM, "pad_h": None}],
        [{**PROBLEM, "pad_h": 1.0}],
    ],
)
def test_a_row_may_omit_optional_dimensions(stored: Path, rows: list[dict[str, float | None]]) -> None:
    """They take their defaults, although the other rows of the table state them."""
    problems = [GroupedConvProblem.from_dict({n: int(v) for n, v in r.items() if v is not None}) for r in rows]
    model = load_artefact(stored)
    found = mlflow.pyfunc.load_model(f"models:/{CONV}@production").predict(pd.DataFrame(rows))
    assert found["kernel_name"].tolist() == [model.pool.names[model.rank(p, 1)[0]] for p in problems]
    assert found["predicted_tflops"].tolist() == [model.predict_tflops(p).max() for p in problems]


@pytest.mark.long
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"pad_h": 1.5}, "pad_h: must be an integer, got 1.5"),
        ({"pad_h": "1"}, "pad_h: must be an integer, got '1'"),
        ({"pad_h": True}, "pad_h: must be an integer, got True"),
        ({"N": None}, "Failed to enforce schema"),
    ],
)
def test_other_values_are_refused(stored: Path, change: dict[str, object], message: str) -> None:
    """MLflow's server used to cut 1.5 to 1."""
    model = mlflow.pyfunc.load_model(f"models:/{CONV}@production")
    with pytest.raises(Exception, match=message):
        model.predict(pd.DataFrame([{**PROBLEM, **change}]))


def _truncate(folder: Path) -> None:
    file = folder / "model_tflops.lgbm.gz"
    file.write_bytes(file.read_bytes()[:-20])


def _tamper(folder: Path) -> None:
    file = folder / "pool.json"
    pool = json.loads(file.read_text())
    pool["kernels"].reverse()
    file.write_text(json.dumps(pool))


def _lose(folder: Path) -> None:
    (folder / "selftest.json").unlink()


def _another(folder: Path) -> None:
    shutil.rmtree(folder)
    write_model(folder, note="another")


def _other_target(folder: Path) -> None:
    shutil.rmtree(folder)
    write_model(folder, target="gemm_universal_fp8_sm90")


@pytest.mark.long
@pytest.mark.parametrize(
    ("damage", "match"),
    [
        (_truncate, r"model_tflops\.lgbm\.gz"),
        (_tamper, r"pool\.json"),
        (_lose, r"selftest\.json: missing"),
        (_another, "content_hash is .*, but MLmodel was written for .*foreign files"),
        (_other_target, "target is gemm_universal_fp8_sm90, but MLmodel was written for grouped_conv"),
    ],
)
def test_damaged_files_are_refused_before_use(stored: Path, damage: Callable[[Path], None], match: str) -> None:
    damage(stored)
    with pytest.raises(ArtefactError, match=match):
        mlflow.pyfunc.load_model(f"models:/{CONV}@production")


def test_nothing_stored_is_code(stored: Path) -> None:
    """Neither a pickle nor a Python file: only the name of a module of the package, and the package to install."""
    files = [p for p in stored.parents[1].rglob("*") if p.is_file()]
    (wheel,) = (p for p in files if p.suffix == ".whl")
    packed = stored.parents[1] / PACKED
    assert unpack(packed.read_bytes()) == load_artefact(stored).files, "the same once more"
    files = [p for p in files if p not in (wheel, packed)]
    assert {p.suffix for p in files} <= {".json", ".gz", ".txt", ".yaml", ""}
    assert not [p for p in files if p.read_bytes()[:2] in (b"\x80\x04", b"\x80\x05", b"PK")]
    assert "loader_module: tilewise.registry.pyfunc" in (stored.parents[1] / "MLmodel").read_text()
    asked = (stored.parents[1] / "requirements.txt").read_text().splitlines()
    assert f"--find-links {wheel.parent.relative_to(stored.parents[1]).as_posix()}" in asked
    assert f"tilewise=={tilewise.__version__}" in asked

"""compose.yaml agrees with ``python -m tilewise.servers``; docker checks the file if it is installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
COMPOSE = yaml.safe_load((ROOT / "compose.yaml").read_text())
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
CONFIGS: dict[str, dict[str, str]] = COMPOSE["configs"]
SECRETS = ("POSTGRES_PASSWORD", "S3_SECRET", "MODELS_SECRET", "DATA_SECRET", "ADMIN_PASSWORD", "SESSION_SECRET",
           "WEBHOOK_KEY")  # fmt: skip
STACK = (ROOT / "src/tilewise/servers/_stack.py").read_text()


def _composes() -> bool:
    if shutil.which("docker") is None:
        return False
    return subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0


@pytest.mark.parametrize("name", SERVICES)
def test_images_are_pinned_and_ports_are_this_machines(name: str) -> None:
    service = SERVICES[name]
    assert re.search(r":(RELEASE\.)?\d[\w.-]*$", service["image"])
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))
    assert service["healthcheck"]["test"][0] == "CMD"


def test_workers_have_the_libraries_that_training_loads() -> None:
    """LightGBM's wheel needs the system's libgomp, and DVC git: slim images lack both."""
    assert not SERVICES["worker"]["image"].endswith("-slim")


def test_mlflow_is_told_what_the_servers_without_containers_tell_it() -> None:
    given = SERVICES["mlflow"]["environment"]
    told = {n for n in re.findall(r'"(MLFLOW_\w+)":', STACK) if not n.startswith("MLFLOW_TRACKING_")}
    assert told - {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION"} <= set(given)
    assert json.loads(given["MLFLOW_S3_UPLOAD_EXTRA_ARGS"]) == {"ContentEncoding": "identity"}
    assert set(SERVICES["mlflow"]["depends_on"]) == {"postgres", "s3"}
    assert "--app-name basic-auth" in SERVICES["mlflow"]["command"]
    for line in CONFIGS["auth"]["content"].splitlines()[1:]:
        assert (
            line.startswith("database_uri")
            or line.replace("admin_username = admin", "admin_username = {ADMIN}") in STACK
        )


def test_mlflow_and_dvc_have_keys_of_their_own() -> None:
    users = dict(re.findall(r'^add (\w+) ([\w-]+) "\$\$[A-Z_]+"$', CONFIGS["store"]["content"], re.MULTILINE))
    assert users == {"models": "tilewise", "data": "tilewise-data"}
    given = SERVICES["mlflow"]["environment"]
    assert given["MLFLOW_ARTIFACTS_DESTINATION"] == f"s3://{users[given['AWS_ACCESS_KEY_ID']]}/mlflow"
    assert given["AWS_SECRET_ACCESS_KEY"] == "${MODELS_SECRET}"
    assert "S3_SECRET" not in str(given)


@pytest.mark.long  # needs the extra `servers`
def test_the_rules_of_roles_need_no_installed_tilewise() -> None:
    """The container mounts the sources beside MLflow."""
    assert "./src:/src:ro" in SERVICES["mlflow"]["volumes"]
    names = "sys.modules.keys() - before if name.split('.')[0] == 'tilewise'"
    source = (
        "import sys, mlflow, tilewise.registry._artifact_repository; before = set(sys.modules); "  # MLflow's plugin
        f"import tilewise.servers._roles; print(*(name for name in {names}))"
    )
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True)
    assert set(done.stdout.split()) == {"tilewise.servers", "tilewise.servers._roles"}


def test_mlflow_is_the_locked_one_on_a_python_of_the_project() -> None:
    (lock,) = re.findall(r"--requirement /(\S+)", SERVICES["mlflow"]["command"])
    assert "--require-hashes" in SERVICES["mlflow"]["command"]
    assert "./requirements:/requirements:ro" in SERVICES["mlflow"]["volumes"]
    assert re.search(r"^mlflow==\d", (ROOT / lock).read_text(), re.MULTILINE)
    minor = int(SERVICES["mlflow"]["image"].split(":3.")[1].split(".")[0])
    wanted = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["requires-python"]
    low, high = (int(n) for n in re.findall(r"3\.(\d+)", wanted))
    assert low <= minor < high or (minor == high and "<=" in wanted)


def test_postgresql_is_of_the_same_major_version() -> None:
    (major,) = re.findall(r"^MAJOR = (\d+)", (ROOT / "src/tilewise/servers/_postgres.py").read_text(), re.MULTILINE)
    assert SERVICES["postgres"]["image"].startswith(f"postgres:{major}.")


@pytest.mark.skipif(not _composes(), reason="needs docker compose")
def test_docker_accepts_the_file_and_asks_for_passwords() -> None:
    def check(**secrets: str) -> subprocess.CompletedProcess[str]:
        command = ["docker", "compose", "--file", str(ROOT / "compose.yaml"), "config", "--quiet"]
        environment = {k: v for k, v in os.environ.items() if k not in SECRETS} | secrets
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    given = dict.fromkeys(SECRETS, "abcdefghijkl")
    assert check(**given).returncode == 0
    for name in SECRETS:
        assert name in check(**{k: v for k, v in given.items() if k != name}).stderr

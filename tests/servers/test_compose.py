"""compose.yaml agrees with ``python -m tilewise.servers``; docker checks the file if it is installed."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[2]
SERVICES: dict[str, dict[str, Any]] = yaml.safe_load((ROOT / "compose.yaml").read_text())["services"]
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


def test_mlflow_is_told_what_the_servers_without_containers_tell_it() -> None:
    given = SERVICES["mlflow"]["environment"]
    told = {n for n in re.findall(r'"(MLFLOW_\w+)":', STACK) if not n.startswith(("MLFLOW_TRACKING_", "MLFLOW_AUTH_"))}
    assert told - {"MLFLOW_FLASK_SERVER_SECRET_KEY", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION"} <= set(given)
    assert json.loads(given["MLFLOW_S3_UPLOAD_EXTRA_ARGS"]) == {"ContentEncoding": "identity"}
    assert given["AWS_ACCESS_KEY_ID"] == SERVICES["s3"]["environment"]["MINIO_ROOT_USER"]
    bucket = given["MLFLOW_ARTIFACTS_DESTINATION"].split("/")[2]
    assert f"mkdir -p /data/{bucket}" in SERVICES["s3"]["entrypoint"][-1]
    assert set(SERVICES["mlflow"]["depends_on"]) == {"postgres", "s3"}


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
        environment = {k: v for k, v in os.environ.items() if k not in ("POSTGRES_PASSWORD", "S3_SECRET")} | secrets
        return subprocess.run(command, env=environment, capture_output=True, text=True)

    assert check(POSTGRES_PASSWORD="abc", S3_SECRET="abcdefgh").returncode == 0
    assert "POSTGRES_PASSWORD" in check(S3_SECRET="abcdefgh").stderr

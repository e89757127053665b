"""The servers, started once by the documented command; the environments of an administrator and of a team's member."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest


@dataclass(frozen=True)
class Running:
    """The servers of this run: their folder, and the variables of a member and of the administrator."""

    folder: Path
    environment: Mapping[str, str]
    admin: Mapping[str, str]
    said: str

    @property
    def uri(self) -> str:
        return self.environment["MLFLOW_TRACKING_URI"]

    @property
    def models(self) -> Mapping[str, str]:
        """The key that only MLflow's server has."""
        settings = json.loads((self.folder / "settings.json").read_text())
        secrets = {"AWS_ACCESS_KEY_ID": "tilewise:admin", "AWS_SECRET_ACCESS_KEY": settings["secrets"]["s3-models"]}
        return {**self.environment, **secrets}


@pytest.fixture(scope="session")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """Start the servers; end them by Ctrl-C, after which none of their processes may run."""
    folder = tmp_path_factory.mktemp("servers")
    command = [sys.executable, "-m", "tilewise.servers", "--folder", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    ending = threading.Timer(800, process.kill)
    ending.start()
    assert process.stdout is not None
    said = ""
    for line in process.stdout:
        said += line
        if line.startswith("Ctrl-C"):
            break
    else:
        status = process.wait()
        ending.cancel()
        pytest.fail(f"the servers did not start, status {status}:\n{said}\n{_log_ends(folder)}", pytrace=False)
    ending.cancel()
    try:
        yield Running(folder, _exported(folder / "environment"), _exported(folder / "admin"), said)
    finally:
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 0, process.stdout.read()
    assert not _processes_of(folder)


def _exported(file: Path) -> dict[str, str]:
    exports = (shlex.split(line)[1] for line in file.read_text().splitlines())
    return dict(e.split("=", 1) for e in exports)


def _log_ends(folder: Path) -> str:
    """Return the last lines of each server's log."""
    logs = {file.name: file.read_text(errors="replace").splitlines() for file in (folder / "logs").glob("*.log")}
    return "\n".join("\n  ".join([f"{name}:", *lines[-30:]]) for name, lines in sorted(logs.items()))


def _processes_of(folder: Path) -> list[str]:
    """Command lines that name the folder."""
    found = []
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            line = file.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:  # ended meanwhile
            continue
        if str(folder) in line:
            found.append(line)
    return found


@pytest.fixture
def admin(servers: Running, monkeypatch: pytest.MonkeyPatch) -> Running:
    """Return the servers, as their first user."""
    for name, value in servers.admin.items():
        monkeypatch.setenv(name, value)
    return servers


@pytest.fixture
def user(admin: Running) -> tuple[str, str]:
    """Return a new user without any rights of its own, and its password."""
    from mlflow.server.auth.client import AuthServiceClient

    name, password = f"user-{uuid.uuid4().hex[:8]}", uuid.uuid4().hex
    AuthServiceClient(admin.uri).create_user(name, password)
    return name, password

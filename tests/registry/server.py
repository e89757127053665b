"""A real MLflow server for a test: its own process, SQLite, artefacts in a folder; or one that somebody else runs."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import requests

from store import fresh_store
from tilewise.servers._service_process import free_ports

GIVEN = "TILEWISE_TEST_MLFLOW_URI"  # a server to test against instead, e.g. one with PostgreSQL
START_S = 120.0


@contextmanager
def mlflow_server(folder: Path) -> Iterator[str]:
    """Return the URI of a server that answers: the given one, or one of our own."""
    if given := os.environ.get(GIVEN):
        yield given
        return
    with own_server(folder) as uri:
        yield uri


@contextmanager
def own_server(folder: Path, address: str = "127.0.0.1", options: Sequence[str] = (), **settings: str) -> Iterator[str]:
    """Run a server at an address of this machine, and yield its URI; stopped at the end, with its workers.

    `options` are of its command, `settings` of its environment.
    """
    (port,) = free_ports(1)
    command = [sys.executable, "-m", "mlflow", "server", "--host", address, "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", fresh_store(folder), "--artifacts-destination", str(folder / "artefacts")]
    command += options
    environment = {**os.environ, "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"}
    environment |= settings
    with (folder / "server.log").open("wb") as log:
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        wait_for(f"http://{address}:{port}/health", process)
        yield f"http://{address}:{port}"
    finally:
        stop(process)


def wait_for(url: str, process: subprocess.Popen[bytes], seconds: float = START_S) -> None:
    """Wait until `url` answers."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        assert process.poll() is None, "the server ended"
        try:
            if requests.get(url, timeout=5).ok:
                return
        except requests.RequestException:
            pass
        time.sleep(0.2)
    raise AssertionError(f"{url} did not answer within {seconds:g} s")


def stop(process: subprocess.Popen[bytes]) -> None:
    """End a process that leads a group of its own, and its group."""
    os.killpg(process.pid, 9)
    process.wait()

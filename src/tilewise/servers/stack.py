"""All servers together: MLflow over PostgreSQL and the S3 store, and what a client has to know of them."""

from __future__ import annotations

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tilewise.errors import ServersError
from tilewise.files import locked
from tilewise.servers.objects import BUCKET, objects, s3_environment
from tilewise.servers.postgres import database_uri, postgres
from tilewise.servers.service import HOST, answers, service
from tilewise.servers.settings import Settings, keep_settings, write_private

ADMIN = "admin"
ENVIRONMENT = "environment"  # the file in the servers' folder


@dataclass(frozen=True)
class Stack:
    """Running servers.

    Attributes:
        uri: of the MLflow server.
        environment: variables for clients, secrets among them.
        remote: where DVC may put its files.
        file: shell commands that set `environment`; readable by its owner only.
    """

    uri: str
    environment: Mapping[str, str] = field(repr=False)
    remote: str
    file: Path


@contextmanager
def run(folder: str | Path, *, auth: bool = False, port: int | None = None, workers: int = 2) -> Iterator[Stack]:
    """Run all servers for the time of the block. What they store is kept in `folder`, for the next time too.

    Args:
        folder: for data, logs and the file with the environment.
        auth: whether MLflow asks who you are; who has no rights of his own may read.
        port: of MLflow; None: that of the last time, or any.
        workers: processes of the MLflow server.

    Raises:
        ServersError: servers run in the folder already, or one does not start.
    """
    folder = Path(folder).absolute()
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with _alone(folder):
        settings = keep_settings(folder / "settings.json", port)
        with (
            postgres(folder, settings, logs),
            objects(folder, settings, logs) as objects_up,
            _mlflow(settings, folder, auth, workers) as mlflow_up,  # takes longest, so all start at once
        ):
            objects_up()
            mlflow_up()
            stack = _stack(settings, folder, auth)
            lines = (f"export {name}={shlex.quote(value)}\n" for name, value in stack.environment.items())
            write_private(stack.file, "".join(lines))
            yield stack


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / "lock", wait=False))
        except BlockingIOError as e:
            raise ServersError(f"servers run in {folder} already: . {folder / ENVIRONMENT}") from e
        yield


@contextmanager
def _mlflow(settings: Settings, folder: Path, auth: bool, workers: int) -> Iterator[Callable[[], None]]:
    """Secrets are handed on by environment and file: everybody can list the arguments of a process."""
    given = {
        **s3_environment(settings),
        "MLFLOW_BACKEND_STORE_URI": database_uri(settings, "mlflow"),
        "MLFLOW_ARTIFACTS_DESTINATION": f"s3://{BUCKET}/mlflow",
        # *.gz is stored as what it is, for clients that would unpack what is marked as encoded.
        "MLFLOW_S3_UPLOAD_EXTRA_ARGS": '{"ContentEncoding": "identity"}',
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
    }
    command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(settings.ports["mlflow"])]
    command += ["--workers", str(workers)]
    if auth:
        ini = folder / "auth.ini"
        write_private(
            ini,
            f"[mlflow]\ndefault_permission = READ\nadmin_username = {ADMIN}\n"
            f"database_uri = {database_uri(settings, 'mlflow_auth')}\n"
            "auth_cache_ttl_seconds = 30\n",  # checking a password is slow by design: once in so long, not per request
        )
        given |= {"MLFLOW_AUTH_CONFIG_PATH": str(ini), "MLFLOW_AUTH_ADMIN_PASSWORD": settings.secrets["admin"]}
        given |= {"MLFLOW_FLASK_SERVER_SECRET_KEY": settings.secrets["session"]}
        command += ["--app-name", "basic-auth"]
    is_up = partial(answers, f"http://{HOST}:{settings.ports['mlflow']}/health")
    unset = [name for name in os.environ if name.startswith(("MLFLOW_TRACKING_", "MLFLOW_REGISTRY_"))]
    with service("mlflow", command, folder / "logs", is_up, environment=given, unset=unset) as wait:
        yield wait


def _stack(settings: Settings, folder: Path, auth: bool) -> Stack:
    uri = f"http://{HOST}:{settings.ports['mlflow']}"
    environment = {"MLFLOW_TRACKING_URI": uri, **s3_environment(settings)}
    if auth:
        environment |= {"MLFLOW_TRACKING_USERNAME": ADMIN, "MLFLOW_TRACKING_PASSWORD": settings.secrets["admin"]}
    return Stack(uri, environment, f"s3://{BUCKET}/dvc", folder / ENVIRONMENT)

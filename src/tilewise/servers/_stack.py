"""All servers together: MLflow over PostgreSQL and the S3 store, the relay, and the variables that clients need."""

from __future__ import annotations

import base64
import os
import shlex
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tilewise.errors import ServersError
from tilewise.files import locked
from tilewise.servers._object_store import DATA, MODELS, run_object_store, s3_environment
from tilewise.servers._postgres import database_uri, run_postgres
from tilewise.servers._server_settings import Settings, load_or_create_settings, write_private
from tilewise.servers._service_process import HOST, Service, answers, run_service
from tilewise.servers.relay import register_webhook

ADMIN = "admin"
# Files in the servers' folder: variables for every member of the team, and the same with the administrator's password.
ENVIRONMENT, ADMIN_ENVIRONMENT = "environment", "admin"
_UVICORN = "--timeout-worker-healthcheck 60"  # on a busy machine 5 s would end workers that are still starting


@dataclass(frozen=True)
class Stack:
    """Running servers.

    Attributes:
        uri: URI of the MLflow server.
        relay: Address of the relay, for TILEWISE_PUSH.
        environment: Variables for clients, including the key of DVC's remote.
        remote: URL of the remote for DVC.
        file: Shell commands that set `environment`, readable only by its owner.
        admin_file: The same for the administrator; None: MLflow asks for no user.
    """

    uri: str
    relay: str
    environment: Mapping[str, str] = field(repr=False)
    remote: str
    file: Path
    admin_file: Path | None


@contextmanager
def run_stack(
    folder: str | Path, *, open_to_all: bool = False, port: int | None = None, workers: int = 2
) -> Iterator[Stack]:
    """Run all servers for the duration of the block. Their data stays in `folder` for the next start.

    Args:
        folder: The folder for data, logs and the file with the environment.
        open_to_all: True to let everybody do everything on MLflow; else it asks for a user, whose rights are those of
            :func:`~tilewise.servers.grant_role`.
        port: Port of MLflow; None: the port of the last start, or any free one.
        workers: Number of processes of the MLflow server.

    Raises:
        ServersError: Servers run in the folder already, or one does not start.
    """
    folder = Path(folder).absolute()
    logs = folder / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    with _exclusive(folder):
        settings = load_or_create_settings(folder / "settings.json", port)
        with (
            run_postgres(folder, settings, logs),
            run_object_store(folder, settings, logs) as wait_for_store,
            run_service(_mlflow(settings, folder, open_to_all, workers), logs) as wait_for_mlflow,  # all start at once
            run_service(_relay(settings), logs) as wait_for_relay,
        ):
            wait_for_store()
            wait_for_mlflow()
            wait_for_relay()
            _register(settings, open_to_all)
            yield _write_environment(settings, folder, open_to_all)


@contextmanager
def _exclusive(folder: Path) -> Iterator[None]:
    """Hold the folder's lock for the duration of the block."""
    with ExitStack() as stack:
        try:
            stack.enter_context(locked(folder / "lock", wait=False))
        except BlockingIOError as e:
            raise ServersError(
                f"a folder serves one set of servers, but servers run in {folder} already: "
                f". {folder / ENVIRONMENT} to use them, or choose another --folder"
            ) from e
        yield


def _mlflow(settings: Settings, folder: Path, open_to_all: bool, workers: int) -> Service:
    """Return the MLflow server. It gets secrets by environment and file, since arguments of processes are public."""
    environment = {
        **s3_environment(settings, MODELS),
        "MLFLOW_BACKEND_STORE_URI": database_uri(settings, "mlflow"),
        "MLFLOW_ARTIFACTS_DESTINATION": f"s3://{MODELS.bucket}/mlflow",
        # Without this, *.gz is marked as encoded, and clients unpack it.
        "MLFLOW_S3_UPLOAD_EXTRA_ARGS": '{"ContentEncoding": "identity"}',
        "MLFLOW_DISABLE_TELEMETRY": "true",
        "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false",
        # The relay is on this machine. Only administrators create webhooks, so that the server calls no other address.
        "MLFLOW_WEBHOOK_ALLOWED_SCHEMES": "http,https",
        "MLFLOW_WEBHOOK_ALLOW_PRIVATE_IPS": "true",
        # Without it each worker has a key of its own, and cannot read the webhook that another one wrote.
        "MLFLOW_WEBHOOK_SECRET_ENCRYPTION_KEY": _storage_key(settings),
    }
    command = [sys.executable, "-m", "mlflow", "server", "--host", HOST, "--port", str(settings.ports["mlflow"])]
    command += ["--workers", str(workers), "--uvicorn-opts", _UVICORN]
    if not open_to_all:
        ini = folder / "auth.ini"
        write_private(
            ini,
            f"[mlflow]\ndefault_permission = READ\nadmin_username = {ADMIN}\n"
            f"database_uri = {database_uri(settings, 'mlflow_auth')}\n"
            "auth_cache_ttl_seconds = 30\n"  # checking a password on each request would be slow
            "authorization_function = tilewise.servers._roles:authenticate\n",
        )
        environment |= {"MLFLOW_AUTH_CONFIG_PATH": str(ini), "MLFLOW_AUTH_ADMIN_PASSWORD": settings.secrets["admin"]}
        environment |= {"MLFLOW_FLASK_SERVER_SECRET_KEY": settings.secrets["session"]}
        environment |= {"MLFLOW_BASIC_AUTH_FAIL_CLOSED": "true"}  # no route without a rule
        command += ["--app-name", "basic-auth"]
    is_up = partial(answers, f"http://{HOST}:{settings.ports['mlflow']}/health")
    unset = [name for name in os.environ if name.startswith(("MLFLOW_TRACKING_", "MLFLOW_REGISTRY_"))]
    return Service("mlflow", command, is_up, environment=environment, unset=unset)


def _storage_key(settings: Settings) -> str:
    """Return the key that MLflow encrypts webhooks' secrets with in its database: 32 bytes in Base64."""
    return base64.urlsafe_b64encode(settings.secrets["webhook-storage"].encode()).decode()


def _relay(settings: Settings) -> Service:
    """Return the relay, which tells dispatchers that an alias moved."""
    command = [sys.executable, "-m", "tilewise.servers.relay", "--host", HOST, "--port", str(settings.ports["relay"])]
    is_up = partial(answers, f"{_relay_address(settings)}/health")
    return Service("relay", command, is_up, environment={"TILEWISE_RELAY_SECRET": settings.secrets["webhook"]})


def _relay_address(settings: Settings) -> str:
    return f"http://{HOST}:{settings.ports['relay']}"


def _register(settings: Settings, open_to_all: bool) -> None:
    """Let MLflow call the relay."""
    uri, relay = f"http://{HOST}:{settings.ports['mlflow']}", _relay_address(settings)
    user, password = ("", "") if open_to_all else (ADMIN, settings.secrets["admin"])
    register_webhook(uri, relay, settings.secrets["webhook"], user=user, password=password)


def _write_environment(settings: Settings, folder: Path, open_to_all: bool) -> Stack:
    """Write the files that set the variables of clients."""
    uri = f"http://{HOST}:{settings.ports['mlflow']}"
    # A team's member looses no limit of the gate. An administrator may, with a reason.
    relay = _relay_address(settings)
    client = {"MLFLOW_TRACKING_URI": uri, "TILEWISE_PUSH": relay, **s3_environment(settings, DATA)}
    member = {**client, "TILEWISE_GATE_OVERRIDE": "off"}
    file, admin_file = folder / ENVIRONMENT, folder / ADMIN_ENVIRONMENT
    write_private(file, _exports(member))
    if open_to_all:
        admin_file.unlink(missing_ok=True)
    else:
        admin = {"MLFLOW_TRACKING_USERNAME": ADMIN, "MLFLOW_TRACKING_PASSWORD": settings.secrets["admin"]}
        write_private(admin_file, _exports({**client, **admin}))
    return Stack(uri, relay, member, f"s3://{DATA.bucket}/dvc", file, None if open_to_all else admin_file)


def _exports(variables: Mapping[str, str]) -> str:
    return "".join(f"export {name}={shlex.quote(value)}\n" for name, value in variables.items())

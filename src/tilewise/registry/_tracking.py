"""The connection to MLflow: the choice of a server or database, and a quick, clear error if it does not answer.

Importing this module does not import mlflow (1.4 s); the functions do.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from contextvars import ContextVar
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from tilewise.errors import AccessDeniedError, ConfigError, RegistryUnavailableError, TilewiseError
from tilewise.files import locked
from tilewise.registry._artifact_paths import make_relative
from tilewise.registry._plain_reader import PlainReader, open_reader

if TYPE_CHECKING:
    from mlflow import MlflowClient

_URI = "MLFLOW_TRACKING_URI"
DATABASE = "mlflow.db"

# Time limits of the first request and of later ones. MLflow's own variables override them.
_PROBE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "5", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
_PATIENCE = {
    "MLFLOW_HTTP_REQUEST_TIMEOUT": "30",
    "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "3",
    "MLFLOW_HTTP_REQUEST_BACKOFF_FACTOR": "1",
}
_QUIET = {
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT": "true",
    "MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR": "false",
    "GIT_PYTHON_REFRESH": "quiet",  # no complaint where git is not installed
    # Download through the server: MLflow's S3 client unpacks *.gz, which MLflow marks as encoded.
    "MLFLOW_ENABLE_PROXY_MULTIPART_DOWNLOAD": "false",
}
_CONNECT_SECONDS = 5
TURN_S = 120.0  # to wait for other threads of the process that use the registry
_session_lock = threading.RLock()
if hasattr(os, "register_at_fork"):  # the thread that held the lock does not exist in the child
    os.register_at_fork(after_in_child=_session_lock._at_fork_reinit)  # type: ignore[attr-defined]
_reader_uri: ContextVar[str | None] = ContextVar("tilewise_registry", default=None)
_plain_reader: ContextVar[PlainReader | None] = ContextVar("tilewise_plain_reader", default=None)
_NO_ANSWER = "the MLflow tracking server does not answer; start it, or set tracking.uri or MLFLOW_TRACKING_URI"
_REFUSALS = {
    "PERMISSION_DENIED": "the MLflow server does not let you do this",
    "UNAUTHENTICATED": "the MLflow server does not know this user and password",
}
_REMEDIES = {
    "PERMISSION_DENIED": "ask an administrator for a role that may",
    "UNAUTHENTICATED": "set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
}
_DATABASE_PORTS = {"postgresql": 5432, "mysql": 3306, "mssql": 1433}
_TIME_LIMITS = {  # arguments of drivers, without which they wait for an answer for any time
    "psycopg": ("connect_timeout",),
    "psycopg2": ("connect_timeout",),
    "pg8000": ("timeout",),
    "mysqldb": ("connect_timeout",),
    "pymysql": ("connect_timeout", "read_timeout"),  # the first does not hold for the server's greeting
    "mysqlconnector": ("connection_timeout",),
}


def resolve_tracking_uri(uri: str | None = None) -> str:
    """Return `uri`, else ``MLFLOW_TRACKING_URI``, else an SQLite file in the project's folder."""
    return uri or os.environ.get(_URI) or f"sqlite:///{_project_folder() / DATABASE}"


def hide_password(uri: str) -> str:
    """Return `uri` without its password, for messages."""
    return re.sub(r"(//[^/@:\s]*):[^/\s]*@", r"\1:***@", uri)


def is_missing_store(uri: str) -> bool:
    """Return whether `uri` is an SQLite file that does not exist yet. Connecting would create it."""
    return uri.startswith("sqlite:///") and not sqlite_path(uri).exists()


def connect(uri: str | None = None) -> str:
    """Choose the tracking server and registry, and make sure that it answers within seconds.

    Args:
        uri: See :func:`resolve_tracking_uri`.

    Returns:
        The URI in use, without its password.

    Raises:
        ConfigError: MLflow does not support this kind of URI.
        RegistryUnavailableError: No MLflow server answers at the URI.
    """
    resolved = resolve_tracking_uri(uri)
    quiet_mlflow()
    import mlflow

    if _is_database(resolved):
        _require_database(resolved)  # MLflow would retry ten times with growing pauses
    _set_tracking_uri(resolved)
    with _first_use_lock(resolved), translate_errors(_NO_ANSWER), _environment(_PROBE):
        mlflow.MlflowClient().search_experiments(max_results=1)
        if resolved.startswith("sqlite:"):
            make_relative(sqlite_path(resolved))
    for name, value in _PATIENCE.items():
        os.environ.setdefault(name, value)
    return hide_password(resolved)


@contextmanager
def registry_session(uri: str | None = None) -> Iterator[str]:
    """Call :func:`connect` for the duration of the block, then restore the application's own MLflow server.

    MLflow stores the choice once for all threads, so sessions of several threads wait for each other.

    Raises:
        ConfigError, RegistryUnavailableError: As :func:`connect`.
    """
    quiet_mlflow()
    import mlflow

    with _session_lock:
        from_environment, in_use = os.environ.get(_URI), mlflow.get_tracking_uri()
        is_set = bool(mlflow.is_tracking_uri_set())  # type: ignore[no-untyped-call]
        application_uri = in_use if is_set and in_use != from_environment else None
        try:
            with _environment(_PATIENCE):
                yield connect(uri)
        finally:
            _set_tracking_uri(application_uri)


@contextmanager
def registry_reader(
    uri: str, *, patient: bool = False, check_later: bool = False
) -> Iterator[Callable[[], None]]:  # fmt: skip
    """Let this thread, and threads with a copy of its context, read versions at `uri` for the duration of the block.

    Unlike a :func:`registry_session`, it does not change MLflow's own choice, so other threads may log meanwhile. An
    SQLite file and an ordinary server are read without importing MLflow.

    Args:
        uri: The registry.
        patient: Wait longer for each answer, and repeat requests.
        check_later: Leave the check whether a database answers to the block, for example in a thread with a deadline.

    Yields:
        A function that makes this check, and raises RegistryUnavailableError if the database cannot be opened.

    Raises:
        RegistryUnavailableError: `uri` is a database that cannot be opened, or another thread has used the registry for
            more than two minutes.
    """
    with open_reader(uri) as plain:
        if plain is None:
            quiet_mlflow()
        check = partial(_require_database, uri) if plain is None and _is_database(uri) else _nothing_to_check
        if not check_later:
            check()
        if not _session_lock.acquire(timeout=TURN_S):  # the thread that holds it may enter again
            raise RegistryUnavailableError(
                f"another thread of this process has used its registry for more than {TURN_S:g} s; start the server"
            )
        tokens = _reader_uri.set(uri), _plain_reader.set(plain)
        try:
            with _environment(_PATIENCE if patient else _PROBE):
                yield check
        finally:
            _reader_uri.reset(tokens[0])
            _plain_reader.reset(tokens[1])
            _session_lock.release()


def holds_registry() -> bool:
    """Return whether this thread is in a session or a reader, whose end the readers of other threads wait for."""
    return bool(_session_lock._is_owned())  # type: ignore[attr-defined]


def prepare_reader(uri: str) -> None:
    """Import MLflow now if a :func:`registry_reader` of `uri` will need it, so that no deadline counts the import."""
    with open_reader(uri) as plain:
        if plain is None:
            quiet_mlflow()


def plain_reader_in_use() -> PlainReader | None:
    """Return the reader of this thread's :func:`registry_reader`; None where MLflow's client reads."""
    return _plain_reader.get()


def client_in_use() -> MlflowClient:
    """Return MLflow's client for this thread's :func:`registry_reader`, else for the connected server."""
    import mlflow

    return mlflow.MlflowClient(tracking_uri=_reader_uri.get(), registry_uri=_reader_uri.get())


def uri_in_use() -> str:
    """Return the URI of :func:`client_in_use`."""
    import mlflow

    return _reader_uri.get() or mlflow.get_tracking_uri()


@contextmanager
def translate_errors(action: str) -> Iterator[None]:
    """Turn errors of MLflow and its libraries in the block into one clear error.

    Args:
        action: The failure in words, e.g. "x cannot be registered".

    Raises:
        ConfigError: MLflow does not support this kind of URI.
        AccessDeniedError: The server does not know the user, or does not let the user do this.
        RegistryUnavailableError: Any other error of MLflow, the database or the network.
    """
    try:
        yield
    except Exception as e:
        if "mlflow" in sys.modules:
            _raise_translated(e, action)
        raise  # an error of the plain reader, which needs no translation


@contextmanager
def translate_store_errors(action: str) -> Iterator[None]:
    """Turn any error of a block that only reads artefacts into one clear error.

    Each kind of artefact store has a library with errors of its own, and those of HTTP are OSErrors.

    Args:
        action: As of :func:`translate_errors`.

    Raises:
        ConfigError, AccessDeniedError: As :func:`translate_errors`.
        RegistryUnavailableError: Every other error.
    """
    try:
        with translate_errors(action):
            yield
    except TilewiseError:
        raise
    except Exception as e:
        raise RegistryUnavailableError(f"{action} ({hide_password(uri_in_use())}): {_first_line(e)}") from e


def _raise_translated(e: Exception, action: str) -> None:
    """Raise the error of tilewise for an error of MLflow or its libraries; return for any other."""
    import requests
    import sqlalchemy
    from mlflow.exceptions import InvalidUrlException, MlflowException
    from mlflow.tracking.registry import UnsupportedModelRegistryStoreURIException

    uri = hide_password(uri_in_use())
    if isinstance(e, UnsupportedModelRegistryStoreURIException | InvalidUrlException):
        raise ConfigError(
            f"tracking.uri must be a URI that MLflow supports, got {uri!r}: {_first_line(e).rstrip('.')}; "
            "use http://, sqlite:/// or postgresql://"
        ) from e
    if isinstance(e, MlflowException | requests.RequestException | sqlalchemy.exc.SQLAlchemyError):
        code = getattr(e, "error_code", "")
        if code in _REFUSALS:
            details = "" if action == _NO_ANSWER else f"; {action}"
            raise AccessDeniedError(f"{_REFUSALS[code]}: {uri}, {_user()}{details}; {_REMEDIES[code]}") from e
        raise RegistryUnavailableError(f"{action} ({uri}): {_first_line(e)}") from e


def sqlite_path(uri: str) -> Path:
    """Return the file of an ``sqlite:///`` URI."""
    return Path(uri.partition("///")[2].partition("?")[0] or DATABASE)


def quiet_mlflow() -> None:
    """Keep mlflow's hints, migration logs and telemetry out of the output. Call it before importing mlflow."""
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    import mlflow  # noqa: F401  (sets its own log level on import, so ours comes after)

    for name in ("mlflow", "alembic"):
        logging.getLogger(name).setLevel(logging.ERROR)
    warnings.filterwarnings("ignore", category=FutureWarning, module="mlflow")


def _project_folder() -> Path:
    """Return the nearest folder with ``dvc.yaml``, this one or one above; else the current folder."""
    here = Path.cwd()
    return next((p for p in (here, *here.parents) if (p / "dvc.yaml").is_file()), here)


def _set_tracking_uri(uri: str | None) -> None:
    """Call MLflow's function of that name without its side effect on the environment, which belongs to the user."""
    import mlflow

    before = os.environ.get(_URI)
    mlflow.set_tracking_uri(uri)  # type: ignore[arg-type]  # None: back to the default
    if before is not None:
        os.environ[_URI] = before
    else:
        os.environ.pop(_URI, None)


def _user() -> str:
    """Return the user that MLflow's client sends, without the password."""
    from mlflow.utils.credentials import read_mlflow_creds

    name = read_mlflow_creds().username
    return f"user {name}" if name else "no user named"


@contextmanager
def _first_use_lock(uri: str) -> Iterator[None]:
    """Let one process at a time connect to an SQLite file: the first use creates the tables."""
    with ExitStack() as stack:
        if uri.startswith("sqlite:///"):
            path = sqlite_path(uri)
            with suppress(OSError, ImportError):  # a read-only folder; or Windows, which has no such locks
                stack.enter_context(locked(path.with_name(f"{path.name}.lock")))
        yield


def _is_database(uri: str) -> bool:
    return urlsplit(uri).scheme.partition("+")[0] in ("sqlite", *_DATABASE_PORTS)


def _nothing_to_check() -> None:
    """Return: only databases are checked before they are read."""


def _require_database(uri: str) -> None:
    import sqlalchemy

    parts = urlsplit(uri)
    scheme = parts.scheme.partition("+")[0]
    try:
        limits: dict[str, int] = {}
        if scheme != "sqlite":
            limits = _time_limits(uri)
            address = (parts.hostname or "localhost", parts.port or _DATABASE_PORTS[scheme])
            socket.create_connection(address, _CONNECT_SECONDS).close()
        elif uri.count("/") > 2:
            sqlite_path(uri).parent.mkdir(parents=True, exist_ok=True)
        engine = sqlalchemy.create_engine(uri, poolclass=sqlalchemy.NullPool, connect_args=limits)
        with engine.connect() as connection:
            sqlalchemy.inspect(connection).get_table_names()  # opens the file, so a foreign one is noticed here
    except (sqlalchemy.exc.SQLAlchemyError, OSError, ValueError, ModuleNotFoundError) as e:
        raise RegistryUnavailableError(
            f"the MLflow database cannot be opened ({hide_password(uri)}): {_first_line(e)}; "
            "start it, or set tracking.uri or MLFLOW_TRACKING_URI"
        ) from e


def _time_limits(uri: str) -> dict[str, int]:
    """Return the arguments that limit the time to connect, but for those in the URI; none for an unknown driver."""
    import sqlalchemy

    url = sqlalchemy.make_url(uri)
    return {n: _CONNECT_SECONDS for n in _TIME_LIMITS.get(url.get_driver_name(), ()) if n not in url.query}


@contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Set variables for the duration of the block, unless the user has set them."""
    before = {k: os.environ.get(k) for k in values if os.environ.get(k) in (None, _PATIENCE.get(k))}
    os.environ.update({k: values[k] for k in before})
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def _first_line(error: BaseException) -> str:
    """Return the first line of an error, or the innermost cause that the HTTP client reports, without passwords."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    cause = re.search(r"Caused by \w+\([\"'](?:\w+\(.*?\): )?(.*)[\"']\)\)", lines[0])
    return hide_password(cause[1] if cause else lines[0])

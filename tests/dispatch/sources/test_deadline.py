"""A database server that accepts connections and does not answer is left in time, also before it is read."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator

import pytest

from synthetic import CONV
from tilewise.dispatch.sources import _model_source, fetch_model
from tilewise.dispatch.sources._deadline import call_within
from tilewise.errors import RegistryUnavailableError
from tilewise.registry import _tracking as tracking
from tilewise.registry import connect, prepare_reader, registry_reader

pytest.importorskip("psycopg")


@pytest.fixture
def silent() -> Iterator[str]:
    """Return the URI of a server of PostgreSQL that never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"postgresql+psycopg://u:secret@127.0.0.1:{server.getsockname()[1]}/mlflow"


@pytest.fixture(autouse=True)
def _patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "_CONNECT_SECONDS", 2)  # the least that PostgreSQL's drivers know


@pytest.mark.long
@pytest.mark.timeout(60)
def test_the_check_of_the_database_counts(silent: str) -> None:
    prepare_reader(silent)
    start = time.monotonic()
    with pytest.raises(RegistryUnavailableError, match=r"x cannot be read: .* did not answer within 0\.2 s"):
        call_within(0.2, silent, lambda: None, "x cannot be read")
    assert time.monotonic() - start < 1.5


@pytest.mark.long
@pytest.mark.timeout(60)
def test_the_error_names_the_database(silent: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_model_source, "ANSWER_S", 20.0)
    with pytest.raises(RegistryUnavailableError, match=r"database cannot be opened \(postgresql.*//u:\*\*\*@"):
        fetch_model(CONV, uri=silent)


@pytest.mark.long
@pytest.mark.timeout(60)
def test_without_a_deadline_the_driver_has_one(silent: str) -> None:
    with pytest.raises(RegistryUnavailableError, match="the MLflow database cannot be opened"):
        connect(silent)
    with pytest.raises(RegistryUnavailableError, match="the MLflow database cannot be opened"), registry_reader(silent):
        pass


@pytest.mark.parametrize(
    ("uri", "limits"),
    [
        ("postgresql://h/db", {"connect_timeout": 2}),
        ("postgresql+psycopg://h/db", {"connect_timeout": 2}),
        ("postgresql+psycopg://h/db?connect_timeout=30", {}),
        ("mysql://h/db", {"connect_timeout": 2}),
        ("mysql+pymysql://h/db", {"connect_timeout": 2, "read_timeout": 2}),
        ("mssql+pyodbc://h/db", {}),
    ],
)
def test_the_limits_of_drivers(uri: str, limits: dict[str, int]) -> None:
    assert tracking._time_limits(uri) == limits

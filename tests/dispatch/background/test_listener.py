"""A listener calls its method when an alias moves and when the relay is back; a hostile relay costs no more."""

from __future__ import annotations

import gc
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest

pytest.importorskip("starlette", reason="needs the extra servers")

from servers.relay.running import moved, relay, send, signed, streams
from tilewise.dispatch.background import Listener, _listener
from tilewise.servers._service_process import free_ports


@pytest.fixture(autouse=True)
def _short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_listener, "_RETRY_S", 0.1)
    monkeypatch.setattr(_listener, "_PAUSE_S", 0.0)


class Looker:
    """Counts its calls; the first ones may fail."""

    def __init__(self, failures: int = 0) -> None:
        self.calls, self._failures = 0, failures

    def look(self) -> None:
        self.calls += 1
        if self.calls <= self._failures:
            raise OSError("the registry is away")


def until(condition: Callable[[], bool], seconds: float = 20.0) -> bool:
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if condition():
            return True
        time.sleep(0.01)
    return False


def announce(address: str, alias: str = "production") -> None:
    body = moved("conv", alias)
    assert send(address, body, signed(body)) == 200


def listening(address: str, looker: Looker) -> Listener:
    listener = Listener(address, "conv", ["production"], looker.look)
    listener.start()
    return listener


def test_it_looks_when_it_connects_and_after_each_move() -> None:
    looker = Looker()
    with relay() as address:
        listener = listening(address, looker)
        assert until(lambda: looker.calls == 1)
        announce(address, "candidate")
        announce(address)
        assert until(lambda: looker.calls == 2)
        assert (listener.is_connected, listener.events) == (True, 1)
        listener.stop()


def test_a_relay_that_was_away_causes_a_look_when_it_is_back() -> None:
    looker, (port,) = Looker(), free_ports(1)
    with relay(port) as address:
        listener = listening(address, looker)
        assert until(lambda: looker.calls == 1)
    assert until(lambda: not listener.is_connected)
    with relay(port):
        assert until(lambda: looker.calls == 2)
        listener.stop()


def test_a_look_that_fails_is_repeated() -> None:
    looker = Looker(failures=2)
    with relay() as address:
        listener = listening(address, looker)
        assert until(lambda: looker.calls == 3 and listener.is_connected)
        listener.stop()


@pytest.mark.long
def test_no_thread_keeps_an_object_that_is_gone() -> None:
    with relay() as address:
        lookers = [Looker()]
        listener = listening(address, lookers[0])
        assert until(lambda: lookers[0].calls == 1 and streams(address) == 1)
        lookers.clear()
        del listener
        gc.collect()
        announce(address)
        assert until(lambda: streams(address) == 0)


@pytest.fixture
def hostile() -> Iterator[str]:
    """Return the address of a server that answers with one endless line."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            while True:
                try:
                    connection, _ = server.accept()
                except OSError:
                    return
                with connection:
                    connection.recv(4096)
                    connection.sendall(b"HTTP/1.0 200 OK\r\n\r\n")
                    try:
                        while True:
                            connection.sendall(b"x" * 65536)
                    except OSError:
                        pass

        threading.Thread(target=serve, daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_an_endless_line_is_refused(hostile: str, caplog: pytest.LogCaptureFixture) -> None:
    looker = Looker()
    listener = listening(hostile, looker)
    assert until(lambda: "a line of the relay has 1024 bytes or more" in caplog.text)
    listener.stop()
    assert looker.calls == 0

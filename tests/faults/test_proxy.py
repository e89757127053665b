"""The proxy's faults, on a server that echoes."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from faults.proxy import KINDS, Network
from faults.schedule import Fault

AT = 3  # the second question: an exchange is a question or an answer


@pytest.fixture(scope="module")
def proxy() -> Iterator[Network]:
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_serve, args=(server,), daemon=True).start()
        yield Network({"echo": server.getsockname()[1]})


@pytest.fixture
def network(proxy: Network) -> Iterator[Network]:
    yield proxy
    proxy.calm()  # a test that failed must not disturb the others


def _serve(server: socket.socket) -> None:
    while True:
        client, _ = server.accept()
        threading.Thread(target=_echo, args=(client,), daemon=True).start()


def _echo(client: socket.socket) -> None:
    with client, contextlib.suppress(ConnectionError):
        while data := client.recv(100):
            client.sendall(data)


def _ask(client: socket.socket, text: bytes) -> bytes | None:
    """Return the answer; None: none came, or the connection was cut."""
    try:
        client.sendall(text)
        return client.recv(100) or None
    except (TimeoutError, ConnectionError):
        return None


def _connect(network: Network) -> socket.socket:
    return socket.create_connection(("127.0.0.1", network.ports["echo"]), 0.3)


def _ask_anew(network: Network, text: bytes) -> bytes | None:
    """Return the answer on a new connection, which a cut may reset before it is made."""
    try:
        with _connect(network) as client:
            return _ask(client, text)
    except ConnectionError:
        return None


def test_without_a_fault_everything_passes(network: Network, tmp_path: Path) -> None:
    network.arm(tmp_path, None)
    with _connect(network) as client:
        assert [_ask(client, text) for text in (b"one", b"two")] == [b"one", b"two"]
    assert network.steps() == 4


@pytest.mark.long
@pytest.mark.parametrize("kind", ["cut once", "cut", "half-open once", "half-open"])
def test_a_connection_is_lost_and_a_lasting_fault_takes_all(network: Network, tmp_path: Path, kind: str) -> None:
    with _connect(network) as client, _connect(network) as other:
        assert _ask(other, b"before") == b"before"
        network.arm(tmp_path, Fault(f"echo: {kind}", AT, 0))
        assert [_ask(client, text) for text in (b"one", b"two")] == [b"one", None]
        lasts = "once" not in kind
        assert _ask(other, b"after") == (None if lasts else b"after")
        assert _ask_anew(network, b"late") == (None if lasts else b"late")
        network.calm()
        assert _ask_anew(network, b"later") == b"later"


def test_a_connection_that_was_half_open_is_reset(network: Network, tmp_path: Path) -> None:
    with _connect(network) as client:
        network.arm(tmp_path, Fault("echo: half-open once", 1, 0))
        assert _ask(client, b"one") is None
        network.calm()
        with pytest.raises(ConnectionResetError):
            client.recv(100)


@pytest.mark.long
def test_garbage_and_delays(network: Network, tmp_path: Path) -> None:
    with _connect(network) as client:
        network.arm(tmp_path, Fault("echo: garbage once", AT, 0))
        assert _ask(client, b"one") == b"one"
        garbled = _ask(client, b"two")
        assert garbled is not None
        assert len(garbled) == 3
        assert garbled != b"two"
        assert _ask(client, b"three") == b"three"
    with _connect(network) as client:
        client.settimeout(10)
        network.arm(tmp_path, Fault("echo: slow", AT, 0))
        assert [_ask(client, text) for text in (b"one", b"two", b"three")] == [b"one", b"two", b"three"]


def test_equal_seeds_draw_equal_faults(network: Network, tmp_path: Path) -> None:
    network.arm(tmp_path, None)
    with _connect(network) as client:
        _ask(client, b"one")
    assert network.steps() == 2
    drawn = [network.draw(random.Random(i), 0) for i in range(60)]
    assert drawn == [network.draw(random.Random(i), 0) for i in range(60)]
    assert {fault.kind for fault in drawn} == {f"echo: {kind}" for kind in KINDS}
    assert {fault.at for fault in drawn} == {1, 2}

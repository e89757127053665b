"""A TCP proxy between clients and servers that damages a connection at its n-th exchange: the faults of a network.

An exchange is a change of direction on a connection: one side begins to send after the other has sent. The proxy is a
process of its own, which ends with the process that started it; forked children of that process may give it orders.
"""

from __future__ import annotations

import asyncio
import json
import os
import random
import socket
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from faults.schedule import Fault

# `once` hits one connection, the others every connection of the link until calm().
KINDS = ("cut once", "cut", "slow", "garbage once", "half-open once", "half-open")
_CHUNK = 1 << 16
_RESET = struct.pack("ii", 1, 0)  # for SO_LINGER: closing sends RST
_STALLS_S, _DELAYS_S = (0.5, 1.5, 4.0), (0.005, 0.02)  # of the slow exchange, and of each later chunk


class Network:
    """The injector, and the parent's end of the proxy.

    Attributes:
        ports: of the proxy, by link.
    """

    def __init__(self, servers: Mapping[str, int]) -> None:
        """Start a proxy for each server, given by its port on this machine."""
        self._control, far = socket.socketpair()
        if os.fork() == 0:
            self._control.close()
            try:
                asyncio.run(_serve(far, servers))
            finally:
                os._exit(0)
        far.close()
        self.ports: dict[str, int] = self._order({"order": "ports"})

    def draw(self, rng: random.Random, steps: int) -> Fault:
        """Choose a link, a kind, and one of the link's usual exchanges, whose number varies a little."""
        usual = self._order({"order": "usual"})
        link = rng.choice(sorted(usual))
        return Fault(f"{link}: {rng.choice(KINDS)}", rng.randint(1, max(1, usual[link])), rng.randrange(1 << 30))

    def arm(self, folder: Path, fault: Fault | None) -> None:
        """Count exchanges from now on; let the fault happen at one."""
        self._order({"order": "arm", "fault": None if fault is None else vars(fault)})

    def steps(self) -> int:
        """Return the exchanges on all links since :meth:`arm`, from now on the usual ones."""
        return sum(self._order({"order": "steps"}).values())

    def calm(self) -> None:
        """End the fault; connections that it hit are reset."""
        self._order({"order": "calm"})

    def _order(self, order: Mapping[str, object]) -> dict[str, int]:
        self._control.sendall(json.dumps(order).encode() + b"\n")
        answer = b""
        while not answer.endswith(b"\n"):
            part = self._control.recv(_CHUNK)
            assert part, "the proxy ended"
            answer += part
        found: dict[str, int] = json.loads(answer)
        return found


class _Connection:
    """Both ends of one connection, as (client, server)."""

    def __init__(self) -> None:
        self.writers: list[asyncio.StreamWriter] = []
        self.sender = -1
        self.is_hit = False

    def end(self) -> None:
        """Close both ends; reset them if a fault hit the connection."""
        for writer in self.writers:
            if self.is_hit:
                with suppress(OSError):  # it is closed already
                    writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
                writer.transport.abort()
            else:
                writer.close()


class _Link:
    """The connections to one server, and the fault that waits for one of their exchanges."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._connections: set[_Connection] = set()
        self.usual = 1
        self.calm()

    def arm(self, fault: Fault | None) -> None:
        self.exchanges, self._fault = 0, fault
        self._kind = "" if fault is None else fault.kind.partition(": ")[2]
        self._rng = random.Random(0 if fault is None else fault.size)

    def calm(self) -> None:
        for connection in [*self._connections]:
            if connection.is_hit:
                connection.end()
        self._happened = False
        self.arm(None)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward both directions until one side ends."""
        connection = _Connection()
        connection.writers.append(writer)
        self._connections.add(connection)
        try:
            if self._lasts("cut"):
                connection.is_hit = True
                return
            back, forth = await asyncio.open_connection("127.0.0.1", self._port)
            connection.writers.append(forth)
            await asyncio.gather(self._pump(connection, 0, reader, forth), self._pump(connection, 1, back, writer))
        except OSError:
            pass
        finally:
            connection.end()
            self._connections.discard(connection)

    async def _pump(
        self, connection: _Connection, side: int, source: asyncio.StreamReader, sink: asyncio.StreamWriter
    ) -> None:
        while data := await source.read(_CHUNK):
            forwarded = await self._pass(connection, side, data)
            if forwarded is None:
                continue
            sink.write(forwarded)
            await sink.drain()
        if not (connection.is_hit and self._kind.startswith("half-open")):
            sink.write_eof()

    async def _pass(self, connection: _Connection, side: int, data: bytes) -> bytes | None:
        """Return the bytes to forward; None: swallow them.

        Raises:
            ConnectionResetError: The connection is cut.
        """
        is_new = connection.sender != side
        connection.sender = side
        self.exchanges += is_new
        hits = is_new and self._fault is not None and self.exchanges == self._fault.at
        self._happened |= hits
        connection.is_hit |= hits or any(map(self._lasts, ("half-open", "cut")))
        if connection.is_hit and self._kind in ("cut", "cut once"):
            raise ConnectionResetError
        if connection.is_hit and self._kind.startswith("half-open"):
            return None
        if hits and self._kind == "garbage once":
            return _garbled(data, self._rng)
        if self._lasts("slow"):
            await asyncio.sleep(self._rng.choice(_STALLS_S if hits else _DELAYS_S))
        return data

    def _lasts(self, kind: str) -> bool:
        return self._happened and self._kind == kind


def _garbled(data: bytes, rng: random.Random) -> bytes:
    """Return data with some bytes replaced by others that no text has."""
    length = min(len(data), rng.choice((8, 64, 1 << 20)))
    at = rng.randrange(len(data) - length + 1)
    return data[:at] + bytes(rng.randrange(0xF8, 0x100) for _ in range(length)) + data[at + length :]


async def _serve(control: socket.socket, servers: Mapping[str, int]) -> None:
    """Run the proxies, and follow orders until the other end of `control` is closed."""
    links = {name: _Link(port) for name, port in servers.items()}
    listening = {name: await asyncio.start_server(link.accept, "127.0.0.1") for name, link in links.items()}
    ports = {name: server.sockets[0].getsockname()[1] for name, server in listening.items()}
    reader, writer = await asyncio.open_connection(sock=control)
    while line := await reader.readline():
        writer.write(json.dumps(_follow(json.loads(line), links, ports)).encode() + b"\n")


def _follow(order: dict[str, object], links: Mapping[str, _Link], ports: Mapping[str, int]) -> object:
    if order["order"] == "ports":
        return ports
    if order["order"] == "usual":
        return {name: link.usual for name, link in links.items()}
    if order["order"] == "steps":
        for link in links.values():
            link.usual = link.exchanges
        return {name: link.usual for name, link in links.items()}
    for name, link in links.items():
        link.calm()
        fault = order.get("fault")
        if isinstance(fault, dict) and fault["kind"].startswith(f"{name}: "):
            link.arm(Fault(**fault))
    return None

"""A server as a child process: its start, its log, its readiness, its end."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from tilewise.errors import ServersError

HOST = "127.0.0.1"
START_S = 300.0
STOP_S = 20.0
_TAIL = 5  # lines of the log in the message about a server that ended
_CLIENT_PORTS = Path("/proc/sys/net/ipv4/ip_local_port_range")
_FIRST_PORT = 10_240  # lower ones belong to well-known servers


@dataclass(frozen=True)
class Service:
    """A server to run.

    Attributes:
        name: Name of the log file, also used in messages.
        command: The command line.
        is_up: A function that returns True once the server is ready. It may raise OSError until then.
        environment: Variables added to ours.
        unset: Variables of ours that the server does not get.
        become: Options of ``setpriv`` to run as another user.
        stop_signal: The signal for an orderly shutdown.
    """

    name: str
    command: Sequence[str | Path]
    is_up: Callable[[], bool]
    environment: Mapping[str, str] = field(default_factory=dict, repr=False)
    unset: Sequence[str] = ()
    become: Sequence[str] = ()
    stop_signal: signal.Signals = signal.SIGTERM


@contextmanager
def run_service(service: Service, logs: Path) -> Iterator[Callable[[], None]]:
    """Run a server for the duration of the block, and yield a function that waits until it is ready.

    The server leads its own session, so Ctrl-C reaches only us and servers end in order. It also ends if we are killed.

    Args:
        service: The server.
        logs: The folder of logs.

    Raises:
        ServersError: From the yielded function: the server ended, or is not ready within :data:`START_S` seconds.
    """
    log = logs / f"{service.name}.log"
    command = ["setpriv", "--pdeathsig", "TERM", *service.become, "--", *map(str, service.command)]
    variables = {k: v for k, v in os.environ.items() if k not in service.unset} | dict(service.environment)
    with log.open("ab") as output:
        process = subprocess.Popen(
            command, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield partial(_wait, service, process, log)
    finally:
        _stop(process, service.stop_signal)


def _wait(service: Service, process: subprocess.Popen[bytes], log: Path) -> None:
    end = time.monotonic() + START_S
    while process.poll() is None:
        with contextlib.suppress(OSError):
            if service.is_up():
                return
        if time.monotonic() > end:
            raise ServersError(
                f"{service.name} must be up within {START_S:g} s, but it is not; its log {log} may say why"
            )
        time.sleep(0.1)
    lines = log.read_text(errors="replace").strip().splitlines()[-_TAIL:]
    status = f"{service.name} ended with status {process.returncode}; the end of {log}:"
    raise ServersError("\n  ".join([status, *lines]))


def _stop(process: subprocess.Popen[bytes], stop_signal: signal.Signals) -> None:
    if process.poll() is None:
        process.send_signal(stop_signal)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # workers that it left behind


def listens(port: int) -> bool:
    """Return True if a process accepts connections on a port of this machine.

    Raises:
        OSError: No process does.
    """
    socket.create_connection((HOST, port), 5.0).close()
    return True


def answers(url: str) -> bool:
    """Return True if a web server answers with status 200.

    Raises:
        OSError: It does not answer, or it answers with an error.
    """
    with urllib.request.urlopen(url, timeout=5.0) as response:
        return bool(response.status == 200)


def is_free(port: int) -> bool:
    """Return whether a port of this machine is free."""
    with contextlib.suppress(OSError), socket.create_server((HOST, port)):
        return True
    return False


def free_ports(count: int, reserved: Collection[int] = ()) -> list[int]:
    """Return distinct free ports of this machine that are not in `reserved`.

    They lie outside the range from which the kernel gives ports to clients: there, a connection of any other process
    could take a port between our choice and the server's start.
    """
    low, high = map(int, _CLIENT_PORTS.read_text().split())
    usable = set(range(_FIRST_PORT, 1 << 16)) - set(reserved)
    candidates = sorted(usable - set(range(low, high + 1)) or usable)
    chosen: list[int] = []
    with contextlib.ExitStack() as held:  # all at once, so none is chosen twice
        for port in random.sample(candidates, len(candidates)):
            if len(chosen) == count:
                break
            with contextlib.suppress(OSError):
                held.enter_context(socket.create_server((HOST, port)))
                chosen.append(port)
    if len(chosen) < count:
        raise ServersError(f"the servers need {count} free ports, but {HOST} has {len(chosen)}; end other servers")
    return chosen

"""A server as a child process: its log, whether it is up, its end."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from tilewise.errors import ServersError

HOST = "127.0.0.1"
START_S = 300.0
STOP_S = 20.0
_TAIL = 5  # lines of its log, where a server ends before it is up


@contextmanager
def service(
    name: str,
    command: Sequence[str | Path],
    logs: Path,
    is_up: Callable[[], bool],
    *,
    environment: Mapping[str, str] | None = None,
    unset: Sequence[str] = (),
    become: Sequence[str] = (),
    stop_by: signal.Signals = signal.SIGTERM,
) -> Iterator[Callable[[], None]]:
    """Run a server for the time of the block, and hand on a function that waits until it is up.

    It leads a session of its own, so that Ctrl-C reaches us alone and servers end in order; and it ends with
    us, however we end.

    Args:
        name: of its log, and in messages.
        command: what to run.
        logs: the folder of logs.
        is_up: asked until it says yes; an OSError is a no.
        environment: variables to add to ours.
        unset: variables of ours that it does not get.
        become: options of ``setpriv`` to run as another user.
        stop_by: the signal that makes it end in good order.

    Raises:
        ServersError: by the function; it ended, or is not up within :data:`START_S` seconds.
    """
    log = logs / f"{name}.log"
    run = ["setpriv", "--pdeathsig", "TERM", *become, "--", *map(str, command)]
    variables = {k: v for k, v in os.environ.items() if k not in unset} | dict(environment or {})
    with log.open("ab") as output:
        process = subprocess.Popen(
            run, env=variables, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    try:
        yield partial(_wait, name, process, is_up, log)
    finally:
        _stop(process, stop_by)


def _wait(name: str, process: subprocess.Popen[bytes], is_up: Callable[[], bool], log: Path) -> None:
    end = time.monotonic() + START_S
    while process.poll() is None:
        with contextlib.suppress(OSError):
            if is_up():
                return
        if time.monotonic() > end:
            raise ServersError(f"{name} is not up after {START_S:g} s; its log: {log}")
        time.sleep(0.1)
    lines = log.read_text(errors="replace").strip().splitlines()[-_TAIL:]
    raise ServersError("\n  ".join([f"{name} ended with status {process.returncode}; the end of {log}:", *lines]))


def _stop(process: subprocess.Popen[bytes], by: signal.Signals) -> None:
    if process.poll() is None:
        process.send_signal(by)
        try:
            process.wait(STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)  # workers that it left behind


def listens(port: int) -> bool:
    """Whether somebody accepts connections on a port of this machine.

    Raises:
        OSError: nobody does.
    """
    socket.create_connection((HOST, port), 5.0).close()
    return True


def answers(url: str) -> bool:
    """Whether a web server says that all is well.

    Raises:
        OSError: it does not.
    """
    with urllib.request.urlopen(url, timeout=5.0) as response:
        return bool(response.status == 200)


def is_free(port: int) -> bool:
    """Whether nobody holds a port of this machine."""
    with contextlib.suppress(OSError), socket.create_server((HOST, port)):
        return True
    return False


def free_port() -> int:
    """A port that nobody holds."""
    with socket.create_server((HOST, 0)) as listener:
        return int(listener.getsockname()[1])

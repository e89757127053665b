"""Hosts on one machine: network namespaces on a bridge, with a Dask scheduler and a worker in each.

Part of :mod:`benchmarks.scale.train_hosts`. Needs root and ``ip`` (iproute2). Hosts share cores, memory and files, and
packets between them take microseconds.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

BRIDGE, NETWORK, SCHEDULER = "twbridge", "10.213.77", 254


@contextmanager
def hosts(count: int) -> Iterator[str]:
    """Run a scheduler beside the bridge, and one worker of one thread per host; yield the scheduler's address."""
    address = f"tcp://{NETWORK}.{SCHEDULER}:8786"
    with ExitStack() as stack:
        stack.enter_context(_bridge())
        names = [stack.enter_context(_host(number)) for number in range(1, count + 1)]
        own = f"{NETWORK}.{SCHEDULER}"
        stack.enter_context(_process("scheduler", "--host", own, "--port", "8786", "--no-dashboard"))
        for number, name in enumerate(names, 1):
            arguments = ("--host", f"{NETWORK}.{number}", "--nthreads", "1", "--no-nanny", "--no-dashboard")
            stack.enter_context(_process("worker", address, *arguments, host=name))
        yield address


@contextmanager
def _bridge() -> Iterator[None]:
    _ip("link", "add", BRIDGE, "type", "bridge")
    try:
        _ip("addr", "add", f"{NETWORK}.{SCHEDULER}/24", "dev", BRIDGE)
        _ip("link", "set", BRIDGE, "up")
        yield
    finally:
        _ip("link", "del", BRIDGE)


@contextmanager
def _host(number: int) -> Iterator[str]:
    """Add a namespace with one address, and yield its name."""
    name, inside, outside = f"twhost{number}", f"twin{number}", f"twout{number}"
    _ip("netns", "add", name)
    try:
        _ip("link", "add", outside, "type", "veth", "peer", "name", inside, "netns", name)
        _ip("link", "set", outside, "master", BRIDGE, "up")
        _ip("-n", name, "addr", "add", f"{NETWORK}.{number}/24", "dev", inside)
        for device in ("lo", inside):
            _ip("-n", name, "link", "set", device, "up")
        yield name
    finally:
        _ip("netns", "del", name)  # its end of the pair goes with it, and so does the other


@contextmanager
def _process(*arguments: str, host: str | None = None) -> Iterator[None]:
    """Run a command of Dask, within a host or beside the bridge, with LightGBM's threads limited to one."""
    command = [] if host is None else ["ip", "netns", "exec", host]
    environment = os.environ | {"OMP_NUM_THREADS": "1", "DASK_DISTRIBUTED__LOGGING__DISTRIBUTED": "error"}
    process = subprocess.Popen([*command, sys.executable, "-m", "dask", *arguments], env=environment)
    try:
        yield
    finally:
        process.terminate()
        process.wait()


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True)

"""Hosts on one machine: network namespaces on a bridge, for :mod:`benchmarks.scale.train_hosts` and for tests.

Needs root and ``ip`` (iproute2). Each host has a loopback device of its own and reaches this machine, and the others,
only over the bridge. Hosts share cores, memory and files, and packets between them take microseconds.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tilewise.files import locked

_BRIDGE, _NETWORK = "twbridge", "10.213.77"
THIS_MACHINE = f"{_NETWORK}.254"  # its address on the bridge, for servers that hosts use


class NoNamespacesError(Exception):
    """This machine, or this user, has no network namespaces."""


@dataclass(frozen=True)
class Host:
    """A namespace with one address."""

    number: int

    @property
    def name(self) -> str:
        """Return the name of the namespace."""
        return f"twhost{self.number}"

    @property
    def address(self) -> str:
        """Return its address on the bridge."""
        return f"{_NETWORK}.{self.number}"

    @property
    def link(self) -> str:
        """Return the device on the bridge that leads to it."""
        return f"twout{self.number}"

    @property
    def command(self) -> tuple[str, ...]:
        """Return the start of a command line that runs the rest on this host."""
        return ("ip", "netns", "exec", self.name)

    @contextmanager
    def cut_off(self) -> Iterator[None]:
        """Take its link down for the duration of the block."""
        _ip("link", "set", self.link, "down")
        try:
            yield
        finally:
            _ip("link", "set", self.link, "up")


@contextmanager
def hosts(count: int) -> Iterator[list[Host]]:
    """Add so many hosts for the duration of the block. Another process that wants some waits meanwhile.

    Raises:
        NoNamespacesError: The user is not root, ``ip`` is missing, or the kernel refuses namespaces or devices.
    """
    if os.geteuid() != 0:
        raise NoNamespacesError("network namespaces need root")
    if shutil.which("ip") is None:
        raise NoNamespacesError("network namespaces need ip (iproute2)")
    with locked(Path(tempfile.gettempdir()) / f"{_BRIDGE}.lock"), ExitStack() as stack:
        stack.enter_context(_bridge())
        yield [stack.enter_context(_added(Host(number))) for number in range(1, count + 1)]


@contextmanager
def _bridge() -> Iterator[None]:
    _remove_device(_BRIDGE)  # of a process that was killed: the lock is ours
    try:
        _ip("link", "add", _BRIDGE, "type", "bridge")
        _ip("addr", "add", f"{THIS_MACHINE}/24", "dev", _BRIDGE)
        _ip("link", "set", _BRIDGE, "up")
        yield
    finally:
        _remove_device(_BRIDGE)


@contextmanager
def _added(host: Host) -> Iterator[Host]:
    inside = f"twin{host.number}"
    _remove(host)
    try:
        _ip("netns", "add", host.name)
        _ip("link", "add", host.link, "type", "veth", "peer", "name", inside, "netns", host.name)
        _ip("link", "set", host.link, "master", _BRIDGE, "up")
        _ip("-n", host.name, "addr", "add", f"{host.address}/24", "dev", inside)
        for device in ("lo", inside):
            _ip("-n", host.name, "link", "set", device, "up")
        yield host
    finally:
        _remove(host)


def _remove(host: Host) -> None:
    _remove_device(host.link)  # at once, with its other end; with the namespace it would go some time later
    if Path("/run/netns", host.name).exists():
        _ip("netns", "del", host.name)


def _remove_device(name: str) -> None:
    if Path("/sys/class/net", name).exists():
        _ip("link", "del", name)


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NoNamespacesError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")

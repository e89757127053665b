"""Tasks that workers find by name."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

from tilewise.errors import DataError


def divide(shared: int, task: int) -> float:
    if task == 0:
        raise DataError("task 0 cannot divide; leave it out")
    return shared / task


def die_once(folder: Path, task: int) -> int:
    """Kill the worker on the first call for each odd task."""
    if task % 2:
        try:
            (folder / f"died-{task}").touch(exist_ok=False)
        except FileExistsError:
            return task
        os.kill(os.getpid(), signal.SIGKILL)
    return task


def die(_: None, task: int) -> int:
    os.kill(os.getpid(), signal.SIGKILL)
    return task


def process(_: None, task: int) -> int:
    return os.getpid()


def meet(folder: Path, task: int, peers: tuple[str, ...], number: int) -> tuple[int, int, str]:
    """Wait for all peers, so that the call ends only if all run at once; the first call of number 1 is killed."""
    if number == 1:
        try:
            (folder / "died").touch(exist_ok=False)
            os.kill(os.getpid(), signal.SIGKILL)
        except FileExistsError:
            pass
    (folder / f"{os.getpid()}-{peers[number].replace(':', '_')}").touch()
    deadline = time.monotonic() + 60
    while not all(list(folder.glob(f"*-{peer.replace(':', '_')}")) for peer in peers):
        if time.monotonic() > deadline:
            raise DataError("a peer did not come")
        time.sleep(0.05)
    return task, os.getpid(), peers[number]

"""Tasks that workers find by name."""

from __future__ import annotations

import os
import signal
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

"""Faults of the disk and the clock, and kills, at the n-th call that changes a file below a scenario's folder.

The process that forks must have been started with the library of ``syscalls.c`` preloaded; see :func:`fault_library`.
"""

from __future__ import annotations

import ctypes
import os
import random
import subprocess
from functools import cache
from pathlib import Path

from faults.schedule import PATIENCE_S, Fault

# In the order of syscalls.c
KINDS = ("kill before", "kill within", "kill after", "disk full", "I/O error", "clock step")
CLOCK_STEPS_S = (-(10**9), -86_400, -3_600, 3_600, 86_400, 10**9)


@cache
def fault_library(folder: Path) -> Path:
    """Compile ``syscalls.c``; the path is for LD_PRELOAD."""
    library = folder / "faults.so"
    source = Path(__file__).with_name("syscalls.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", str(source), "-o", str(library)], check=True)
    return library


class Disk:
    """The injector of the preloaded library."""

    def draw(self, rng: random.Random, steps: int) -> Fault:
        """Choose a kind and a step."""
        return Fault(rng.choice(KINDS), rng.randint(1, max(1, steps)), rng.choice(CLOCK_STEPS_S))

    def arm(self, folder: Path, fault: Fault | None) -> None:
        """Let the fault happen at a step below `folder` from now on."""
        number = 0 if fault is None else 1 + KINDS.index(fault.kind)
        at, seconds = (0, 0) if fault is None else (fault.at, fault.size)
        _library().faults_arm(str(folder).encode(), number, ctypes.c_long(at), ctypes.c_long(seconds))

    def steps(self) -> int:
        """Return the number of calls since :meth:`arm`."""
        return int(_library().faults_steps())

    def calm(self) -> None:
        """Need nothing: these faults end with the process."""


class OnDisk:
    """A scenario that faults of the disk hit."""

    injector = Disk()
    patience_s = PATIENCE_S


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    library.faults_steps.restype = ctypes.c_long
    return library

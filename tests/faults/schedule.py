"""One schedule of a fault: a scenario runs in a forked process, a fault hits one of its steps, and all is checked.

The process that forks must have been started with the library of ``syscalls.c`` preloaded; see :func:`fault_library`.
"""

from __future__ import annotations

import ctypes
import os
import random
import shutil
import signal
import subprocess
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Literal, Protocol

from tilewise.errors import TilewiseError

Kind = Literal["kill before", "kill within", "kill after", "disk full", "I/O error", "clock step"]
KINDS: tuple[Kind, ...] = ("kill before", "kill within", "kill after", "disk full", "I/O error", "clock step")
CLOCK_STEPS_S = (-(10**9), -86_400, -3_600, 3_600, 86_400, 10**9)
PATIENCE_S = 120.0
DONE, SAID = 0, 3  # exit statuses of a scenario's process: it completed, or it ended with an error in words


class Scenario(Protocol):
    """Something that writes files, and can be run again after any fault."""

    def load(self) -> None:
        """Compute the parts that all schedules share, once, in the process that forks."""

    def prepare(self, folder: Path) -> None:
        """Write the state before the fault, outside `folder` itself, or in it."""

    def act(self, folder: Path) -> None:
        """Do the work; steps are counted below `folder`. Run again, it completes interrupted work."""

    def faults(self, folder: Path, complete: bool) -> list[str]:
        """Return everything that is wrong below `folder` now; `complete`: the work was done without a fault."""


@dataclass(frozen=True)
class Verdict:
    """The end of a schedule.

    Attributes:
        kind: the fault.
        at: the step that it hit, counted from 1; 0 if the scenario has no steps.
        ended: ``killed``, ``completed`` or ``said``: with an error in words.
        left: files of interrupted writes that nothing removes.
        wrong: broken invariants; empty if all hold.
    """

    kind: Kind
    at: int
    ended: str
    left: int
    wrong: tuple[str, ...]


@cache
def fault_library(folder: Path) -> Path:
    """Compile ``syscalls.c``; the path is for LD_PRELOAD."""
    library = folder / "faults.so"
    source = Path(__file__).with_name("syscalls.c")
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", str(source), "-o", str(library)], check=True)
    return library


def run_schedule(scenario: Scenario, steps: int, rng: random.Random, root: Path) -> Verdict:
    """Run a scenario with one fault, check it, run it again without, and check it again.

    Args:
        scenario: see :class:`Scenario`.
        steps: of the undisturbed scenario.
        rng: chooses the fault and its step.
        root: an empty folder.
    """
    kind, at, seconds = rng.choice(KINDS), rng.randint(1, max(1, steps)), rng.choice(CLOCK_STEPS_S)
    folder = root / "work"
    folder.mkdir()
    assert forked(lambda: scenario.prepare(folder)) == DONE
    status = forked(lambda: scenario.act(folder), lambda: arm(folder, kind, at, seconds))
    ended = {DONE: "completed", SAID: "said", -signal.SIGKILL: "killed"}.get(status)
    wrong = [] if ended else [f"the faulty run ended with status {status}"]
    wrong += _checked(scenario, folder, complete=False)
    status = forked(lambda: scenario.act(folder))
    wrong += [] if status == DONE else [f"the next run does not complete: status {status}"]
    wrong += _checked(scenario, folder, complete=True)
    left = sum(1 for path in folder.rglob(".*") if not path.name.endswith(".lock"))
    shutil.rmtree(root)
    return Verdict(kind, at, ended or "failed", left, tuple(wrong))


def count_steps(scenario: Scenario, root: Path) -> int:
    """Return the number of steps of a scenario without a fault; checks that it is sound."""
    folder, counted = root / "work", root / "steps"
    folder.mkdir()
    scenario.load()
    assert forked(lambda: scenario.prepare(folder)) == DONE

    def act() -> None:
        scenario.act(folder)
        counted.write_text(str(_library().faults_steps()))

    assert forked(act, lambda: arm(folder, None, 0, 0)) == DONE, "the scenario fails without a fault"
    assert _checked(scenario, folder, complete=True) == []
    steps = int(counted.read_text())
    shutil.rmtree(root)
    return steps


def arm(folder: Path, kind: Kind | None, at: int, seconds: int) -> None:
    """Let a fault happen at a step below `folder` from now on; None: count steps only."""
    number = 0 if kind is None else 1 + KINDS.index(kind)
    _library().faults_arm(str(folder).encode(), number, ctypes.c_long(at), ctypes.c_long(seconds))


def _library() -> ctypes.CDLL:
    library = ctypes.CDLL(os.environ["LD_PRELOAD"])
    library.faults_steps.restype = ctypes.c_long
    return library


def _checked(scenario: Scenario, folder: Path, *, complete: bool) -> list[str]:
    """Return the faults that a fresh process finds."""
    report = folder.with_name("wrong")

    def look() -> None:
        report.write_text("\n".join(scenario.faults(folder, complete)))

    status = forked(look)
    found = report.read_text().splitlines() if report.is_file() else []
    report.unlink(missing_ok=True)
    when = "after completion" if complete else "after the fault"
    return [f"{when}: {line}" for line in found] + ([] if status == DONE else [f"{when}: checking failed: {status}"])


def forked(work: Callable[[], None], begin: Callable[[], None] = lambda: None) -> int:
    """Run `work` in a forked process; return its exit status, negative for a signal."""
    child = os.fork()
    if child == 0:
        status = 4
        try:
            begin()
            work()
            status = DONE
        except (TilewiseError, OSError):
            status = SAID
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    end = time.monotonic() + PATIENCE_S
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGALRM  # it hung

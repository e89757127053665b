"""One schedule of a fault: a scenario runs in a forked process, a fault hits one of its steps, and all is checked."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tilewise.errors import TilewiseError

PATIENCE_S = 120.0
DONE, SAID = 0, 3  # exit statuses of a scenario's process: it completed, or it ended with an error in words


@dataclass(frozen=True)
class Fault:
    """A fault that waits for its step.

    Attributes:
        kind: in words.
        at: the step that it hits, counted from 1.
        size: seconds of a jump, or a seed; by kind.
    """

    kind: str
    at: int
    size: int


class Injector(Protocol):
    """A way for faults to hit a scenario, and to count its steps."""

    def draw(self, rng: random.Random, steps: int) -> Fault:
        """Choose a fault of a scenario with so many steps; equal generators choose equal ones."""

    def arm(self, folder: Path, fault: Fault | None) -> None:
        """Count steps from now on, and let the fault happen; called in the scenario's process before its work."""

    def steps(self) -> int:
        """Return the number of steps so far; called in the scenario's process after its work."""

    def calm(self) -> None:
        """End a fault that outlives the scenario's process."""


class Scenario(Protocol):
    """Something that writes files or to servers, and can be run again after any fault."""

    patience_s: float

    @property
    def injector(self) -> Injector:
        """Return the way for faults to hit it."""

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
        ended: ``killed``, ``completed`` or ``said``: with an error in words.
        left: files of interrupted writes that nothing removes.
        wrong: broken invariants; empty if all hold.
    """

    ended: str
    left: int
    wrong: tuple[str, ...]


def run_schedule(scenario: Scenario, fault: Fault, root: Path) -> Verdict:
    """Run a scenario with one fault, check it, run it again without, and check it again.

    Args:
        scenario: see :class:`Scenario`.
        fault: from the scenario's injector.
        root: an empty folder.
    """
    folder, injector = root / "work", scenario.injector
    folder.mkdir()
    assert _forked(scenario, lambda: scenario.prepare(folder)) == DONE
    status = _forked(scenario, lambda: scenario.act(folder), lambda: injector.arm(folder, fault))
    injector.calm()
    ended = {DONE: "completed", SAID: "said", -signal.SIGKILL: "killed"}.get(status)
    wrong = [] if ended else [f"the faulty run ended with status {status}"]
    wrong += _checked(scenario, folder, complete=False)
    status = _forked(scenario, lambda: scenario.act(folder))
    wrong += [] if status == DONE else [f"the next run does not complete: status {status}"]
    wrong += _checked(scenario, folder, complete=True)
    left = sum(1 for path in folder.rglob(".*") if not path.name.endswith(".lock"))
    shutil.rmtree(root)
    return Verdict(ended or "failed", left, tuple(wrong))


def count_steps(scenario: Scenario, root: Path) -> int:
    """Return the number of steps of a scenario without a fault; checks that it is sound."""
    folder, counted = root / "work", root / "steps"
    folder.mkdir()
    scenario.load()
    assert _forked(scenario, lambda: scenario.prepare(folder)) == DONE

    def act() -> None:
        scenario.act(folder)
        counted.write_text(str(scenario.injector.steps()))

    assert _forked(scenario, act, lambda: scenario.injector.arm(folder, None)) == DONE, "it fails without a fault"
    assert _checked(scenario, folder, complete=True) == []
    steps = int(counted.read_text())
    shutil.rmtree(root)
    return steps


def _forked(scenario: Scenario, work: Callable[[], None], begin: Callable[[], None] = lambda: None) -> int:
    return forked(work, begin, patience_s=scenario.patience_s)


def _checked(scenario: Scenario, folder: Path, *, complete: bool) -> list[str]:
    """Return the faults that a fresh process finds."""
    report = folder.with_name("wrong")

    def look() -> None:
        report.write_text("\n".join(scenario.faults(folder, complete)))

    status = _forked(scenario, look)
    found = report.read_text().splitlines() if report.is_file() else []
    report.unlink(missing_ok=True)
    when = "after completion" if complete else "after the fault"
    return [f"{when}: {line}" for line in found] + ([] if status == DONE else [f"{when}: checking failed: {status}"])


def forked(
    work: Callable[[], None], begin: Callable[[], None] = lambda: None, *, patience_s: float = PATIENCE_S
) -> int:
    """Run `work` in a forked process; return its exit status, negative for a signal."""
    child = fork(work, begin)
    end = time.monotonic() + patience_s
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return -signal.SIGALRM  # it hung


def fork(work: Callable[[], None], begin: Callable[[], None] = lambda: None) -> int:
    """Start `work` in a forked process; return its id."""
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
    return child

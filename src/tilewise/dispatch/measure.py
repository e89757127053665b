"""Measuring on the spot: the same engine and rules as ``tilewise collect``, for one problem.

A process of its own measures: a kernel that faults or hangs costs a row there and nothing here; streams, precision
flags and memory of this process stay as they are, and forking stays safe. It takes some ten seconds, once a problem.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Protocol

import tilewise
from tilewise.arch import HardwareProfile
from tilewise.dispatch import forks
from tilewise.dispatch.machine import Machine, kernels_hash, this_machine
from tilewise.errors import MeasurementError, TilewiseError
from tilewise.files import locked
from tilewise.kernels.pool import Pool
from tilewise.ops import Problem, Target

if TYPE_CHECKING:
    from tilewise.collect.recorded import RecordedMeasurements
    from tilewise.collect.results import Outcome

RUN_ID = "dispatch"
_TIMEOUT_S = 1800.0  # far beyond what a pool takes; the worker's own limits end hanging kernels long before
_MAX_CHARS = 300


@dataclass(frozen=True)
class Work:
    """Which kernels to measure on which problem; `kernels` are indices into the pool, ascending."""

    target: Target
    arch: HardwareProfile
    pool: Pool
    problem: Problem
    kernels: Sequence[int]


class Measurer(Protocol):
    """What measures; tests and machines without a GPU use a recorded table."""

    def machine(self, target: Target) -> Machine | None:
        """Where it measures; None where the target's kernels cannot run here."""

    def measure(self, work: Work) -> Mapping[int, Outcome]:
        """The outcome of each kernel, by index.

        Raises:
            MeasurementError: measuring itself failed.
        """


class GpuMeasurer:
    """Measures on this machine's first visible GPU, in a process of its own."""

    def machine(self, target: Target) -> Machine | None:
        """See :class:`Measurer`."""
        machine = this_machine()
        return machine if machine is not None and machine.arch == target.arch else None

    def measure(self, work: Work) -> Mapping[int, Outcome]:
        """See :class:`Measurer`."""
        from tilewise.collect.plan import Item, Plan, Timing
        from tilewise.collect.recorded import RecordedMeasurements  # needs pyarrow, as measuring does

        items = (Item(work.problem, RUN_ID, tuple(work.kernels)),)
        plan = Plan(work.target, work.arch, work.pool, items, Timing(), RUN_ID)
        with TemporaryDirectory(prefix="tilewise-") as scratch:
            described, table = Path(scratch, "plan.json"), Path(scratch, "table.parquet")
            described.write_text(plan.dumps())
            _run([sys.executable, "-m", "tilewise.collect", str(described), str(table)])
            measured = RecordedMeasurements.load(table, work.target)
        names = work.pool.names
        return {k: measured.outcome(work.problem, names[k]) for k in work.kernels}


class RecordedMeasurer:
    """Looks up in a recorded table what a GPU would measure.

    Raises:
        DataError: the table cannot be used; once it is first asked.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._tables: dict[str, RecordedMeasurements] = {}

    def machine(self, target: Target) -> Machine:
        """See :class:`Measurer`."""
        return Machine(f"recorded in {self._path.name}", target.arch, "", "", "", kernels_hash())

    def measure(self, work: Work) -> Mapping[int, Outcome]:
        """See :class:`Measurer`."""
        from tilewise.collect.recorded import RecordedMeasurements

        table = self._tables.get(work.target.name)
        if table is None:
            table = self._tables[work.target.name] = RecordedMeasurements.load(self._path, work.target)
        return {k: table.outcome(work.problem, work.pool.names[k]) for k in work.kernels}


def _run(command: Sequence[str]) -> None:
    import subprocess  # seldom needed, and selecting should start fast

    source = str(Path(tilewise.__file__).parents[1])
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [source, os.environ.get("PYTHONPATH")]))}
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise MeasurementError(f"measuring on the spot: {e}") from e
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"exit status {done.returncode}"]
        raise MeasurementError(f"measuring on the spot: {lines[-1][:_MAX_CHARS]}")


class _Turn:
    """One measurement at a time, on the machine and not only in this process: two would disturb each other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        forks.register(self)

    def after_fork(self) -> None:
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def taken(self, folder: Path) -> Iterator[None]:
        """Wait until nobody measures: no thread of this process, and no process that shares the cache `folder`."""
        with self._lock, contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # a cache that cannot be written has no lock either
                stack.enter_context(locked(folder / ".lock"))
            yield


alone = _Turn().taken


def capturing() -> bool:
    """Whether this thread's CUDA stream is being captured into a graph: nothing may be measured then."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_available() or not cuda.is_initialized():
        return False
    return bool(cuda.is_current_stream_capturing())


def outcomes_of(measurer: Measurer, work: Work) -> Mapping[int, Outcome]:
    """How each kernel did, at least one of them right.

    Raises:
        MeasurementError: measuring failed, or no kernel was right.
    """
    try:
        outcomes = measurer.measure(work)
    except MeasurementError:
        raise
    except (TilewiseError, ImportError, OSError) as e:
        raise MeasurementError(f"measuring on the spot: {e}") from e
    if all(outcome.samples is None for outcome in outcomes.values()):
        reasons = next((o.error for o in outcomes.values() if o.error), "nothing was measured")
        raise MeasurementError(f"measuring on the spot: no kernel gave a right result: {reasons}")
    return outcomes

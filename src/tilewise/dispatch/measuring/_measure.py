"""Measuring problems on the spot, with the engine and the rules of ``tilewise collect``.

A separate process measures. A kernel that faults or hangs costs one row there and nothing here; the streams, precision
flags and memory of this process stay unchanged, and forking stays safe. A process takes about ten seconds to start, and
milliseconds for each kernel, once its program is compiled.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

import tilewise
from tilewise.arch import HardwareProfile
from tilewise.dispatch.background import register_after_fork
from tilewise.errors import MeasurementError, TilewiseError
from tilewise.files import locked
from tilewise.kernels import Backend, Pool
from tilewise.ops import Problem, Target

if TYPE_CHECKING:
    from tilewise.collect import Outcome
    from tilewise.collect.engines import ReplayTable
    from tilewise.dispatch.measuring._machine import Machine

RUN_ID = "dispatch"
_TIMEOUT_S = 1800.0  # far more than a pool takes; the worker's own limits end hanging kernels long before
_MAX_CHARS = 300


class MeasurementJob(NamedTuple):
    """The kernels to measure on each of some problems.

    Attributes:
        target: of the pool.
        arch: the target's hardware.
        pool: the kernels.
        kernels: indices into the pool by problem, ascending.
    """

    target: Target
    arch: HardwareProfile
    pool: Pool
    kernels: Mapping[Problem, Sequence[int]]


Outcomes = Mapping[Problem, Mapping[int, "Outcome"]]  # by problem and index into the pool


class Measurer(Protocol):
    """A GPU that measures kernels, or a substitute for one."""

    def machine(self, target: Target) -> Machine | None:
        """Return the machine that measures, or None if it cannot run the target's kernels."""

    def absence(self, target: Target) -> str:
        """Return why :meth:`machine` gives None."""

    def measure(self, job: MeasurementJob) -> Outcomes:
        """Return the outcome of each kernel on each problem.

        Raises:
            MeasurementError: measuring itself failed.
        """


class GpuMeasurer:
    """The first visible GPU of this machine, used from a separate process."""

    def machine(self, target: Target) -> Machine | None:
        """See :meth:`Measurer.machine`."""
        from tilewise.dispatch.measuring._machine import this_machine  # imports on first use keep the start short

        machine = this_machine()
        return machine if machine is not None and machine.arch == target.arch else None

    def absence(self, target: Target) -> str:
        """See :meth:`Measurer.absence`."""
        return f"there is no GPU of {target.arch} here"

    def measure(self, job: MeasurementJob) -> Outcomes:
        """See :meth:`Measurer.measure`."""
        return _look_up(job, measure_apart(job))


def measure_apart(job: MeasurementJob) -> ReplayTable:
    """Measure a job in a separate process, with ``python -m tilewise.collect``.

    Raises:
        MeasurementError: the process failed.
    """
    from tempfile import TemporaryDirectory  # imports on first use keep the start short

    from tilewise.collect import Item, Plan, Timing
    from tilewise.collect.engines import ReplayTable

    items = tuple(Item(problem, RUN_ID, tuple(kernels)) for problem, kernels in job.kernels.items())
    plan = Plan(job.target, job.arch, job.pool, items, Timing(), RUN_ID)
    with TemporaryDirectory(prefix="tilewise-") as scratch:
        plan_file, table_file = Path(scratch, "plan.json"), Path(scratch, "table.parquet")
        plan_file.write_text(plan.dumps())
        _run([sys.executable, "-m", "tilewise.collect", str(plan_file), str(table_file)])
        return ReplayTable.load(table_file, job.target)


class ReplayMeasurer:
    """A replay table (recorded measurements) in place of a GPU.

    Args:
        path: of the table, or of a folder of tables. It is read on the first measurement, which raises a DataError if
            the table cannot be used.
    """

    def __init__(self, path: str | Path) -> None:
        self._path = Path(path)
        self._tables: dict[str, ReplayTable] = {}

    def machine(self, target: Target) -> Machine:
        """See :meth:`Measurer.machine`."""
        from tilewise.dispatch.measuring._machine import Machine, kernels_hash

        return Machine(f"recorded in {self._path.name}", target.arch, "", "", "", kernels_hash())

    def absence(self, target: Target) -> str:
        """See :meth:`Measurer.absence`; a replay table is always there."""
        return f"{self._path} is not there"

    def measure(self, job: MeasurementJob) -> Outcomes:
        """See :meth:`Measurer.measure`."""
        from tilewise.collect.engines import ReplayTable

        table = self._tables.get(job.target.name)
        if table is None:
            table = self._tables[job.target.name] = ReplayTable.load(self._path, job.target)
        return _look_up(job, table)


def _look_up(job: MeasurementJob, table: ReplayTable) -> Outcomes:
    names = job.pool.names
    return {p: {k: table.outcome(p, names[k]) for k in kernels} for p, kernels in job.kernels.items()}


def _library_measurer() -> Measurer:
    from tilewise.dispatch.measuring._library_measurer import LibraryMeasurer  # other backends do not need it

    return LibraryMeasurer()


_MEASURERS: Mapping[str, Callable[[], Measurer]] = {"ck_tile": _library_measurer}  # all others: this machine's GPU


def local_measurer(backend: Backend) -> Measurer:
    """Return the measurer of a backend's kernels on this machine."""
    return _MEASURERS.get(backend.name, GpuMeasurer)()


def _run(command: Sequence[str]) -> None:
    import subprocess  # rarely needed, and costly to import

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


class _Exclusive:
    """A lock that lets one measurement run at a time: simultaneous ones would disturb each other."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        register_after_fork(self)

    def after_fork(self) -> None:
        """Replace the lock in a forked child."""
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def hold(self, folder: Path) -> Iterator[None]:
        """Keep out other threads of this process, and other processes that share the cache `folder`."""
        with self._lock, contextlib.ExitStack() as stack:
            with contextlib.suppress(OSError):  # a cache that cannot be written cannot be locked either
                stack.enter_context(locked(folder / ".lock"))
            yield


exclusively = _Exclusive().hold


def is_capturing() -> bool:
    """Return whether this thread's CUDA stream is being captured into a graph, during which measuring is forbidden."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    if cuda is None or not cuda.is_available() or not cuda.is_initialized():
        return False
    return bool(cuda.is_current_stream_capturing())


def measure_job(measurer: Measurer, job: MeasurementJob) -> Outcomes:
    """Return the outcome of each kernel on each problem.

    Raises:
        MeasurementError: measuring failed.
    """
    try:
        return measurer.measure(job)
    except MeasurementError:
        raise
    except (TilewiseError, ImportError, OSError) as e:
        raise MeasurementError(f"measuring on the spot: {e}") from e


def why_useless(outcomes: Mapping[int, Outcome]) -> str | None:
    """Return why the outcomes of a problem's kernels decide nothing, or None: one computed a correct result."""
    if any(outcome.samples is not None for outcome in outcomes.values()):
        return None
    reason = next((o.error for o in outcomes.values() if o.error), "nothing was measured")
    return f"measuring on the spot: no kernel gave a right result: {reason}"

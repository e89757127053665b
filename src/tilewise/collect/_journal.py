"""Append-only journal of a run, which keeps every measured problem through a crash.

Each line is a JSON object: first the plan's hash, then devices, kernels that broke a worker, and measured problems. A
problem is one write followed by fsync, so a killed run loses at most the problems in progress. Opening a journal cuts
off a torn last line, and locks the file: two runs cannot write to one journal.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

from tilewise.collect._outcomes import LEFT_OUT, Outcome, group_failures, outcome_columns
from tilewise.collect._plan import Plan
from tilewise.collect.engines import Device
from tilewise.errors import DataError

FORMAT = 2
Values = Mapping[str, Any]  # of a line


@dataclasses.dataclass(frozen=True)
class FailedKernels:
    """Kernels of a problem that failed with the same status and error."""

    status: str
    error: str
    kernels: Sequence[int]


@dataclasses.dataclass(frozen=True)
class JournalEntry:
    """One measured problem, with an outcome for each kernel of the pool.

    Attributes:
        index: of the problem in the plan.
        measured_at: ISO time in UTC.
        device: where it was measured.
        ok: columns of equal length: ``kernel`` (indices) and those of :func:`tilewise.collect.summarize_samples`.
        failed: the other kernels.
    """

    index: int
    measured_at: str
    device: Device
    ok: Mapping[str, Sequence[Any]]
    failed: Sequence[FailedKernels]

    @property
    def by_status(self) -> Counter[str]:
        """Number of kernels by status, without those that the plan excludes."""
        counts = Counter({"ok": len(self.ok["kernel"])} if self.ok["kernel"] else {})
        for group in self.failed:
            if group.status != LEFT_OUT:
                counts[group.status] += len(group.kernels)
        return counts


class ProblemLog(Protocol):
    """Keeper of a run's measured problems; :class:`Journal` and that of a shard have this form.

    Attributes:
        entries: the measured problems, by index.
        broken: outcomes of kernels that broke a worker, by kernel index, by index of a problem not measured yet.
    """

    entries: dict[int, JournalEntry]
    broken: dict[int, dict[int, Outcome]]

    def add(self, index: int, measured_at: str, device: Device, outcomes: Sequence[Outcome]) -> None:
        """Keep a measured problem for good."""

    def note_broken(self, index: int, outcomes: Mapping[int, Outcome]) -> None:
        """Keep kernels that broke a worker, so that no run tries them on this problem again."""


class Journal:
    """Journal file of a plan, created if missing; use it as a context manager.

    Attributes:
        entries: the measured problems, by index.
        broken: outcomes of kernels that broke a worker, by kernel index, by index of a problem not measured yet.

    Raises:
        DataError: the file belongs to another plan, has an older format or is in use, or a line before the last is
            damaged.
    """

    def __init__(self, path: Path, plan: Plan) -> None:
        self._path = path
        self._plan = plan
        self._devices: list[Device] = []
        self.entries: dict[int, JournalEntry] = {}
        self.broken: dict[int, dict[int, Outcome]] = {}
        self._file = _open_locked(path)
        try:
            self._file.truncate(self._read())
            if not path.stat().st_size:
                self._append({"journal": FORMAT, "plan": plan.hash, "run_id": plan.run_id})
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, index: int, measured_at: str, device: Device, outcomes: Sequence[Outcome]) -> None:
        """Append a measured problem; on return it is on disk."""
        if device not in self._devices:
            self._devices.append(device)
            self._append({"device": dataclasses.asdict(device)})
        line = {**problem_line(index, measured_at, outcomes), "on": self._devices.index(device)}
        self._append(line)
        self._apply(line)

    def note_broken(self, index: int, outcomes: Mapping[int, Outcome]) -> None:
        """Append kernels that broke a worker, so that no run tries them on this problem again."""
        line = broken_line(index, outcomes)
        self._append(line)
        self._apply(line)

    def _append(self, values: Mapping[str, object]) -> None:
        self._file.write(json.dumps(values, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self) -> int:
        """Apply all complete lines of the file and return their number of bytes."""
        complete = 0
        self._file.seek(0)
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                break  # torn when the run was killed
            try:
                values = json.loads(line)
                if number == 1:
                    self._require_same_plan(values)
                else:
                    self._apply(values)
            except (ValueError, KeyError, TypeError, IndexError) as e:
                raise DataError(
                    f"{self._path}:{number}: damaged journal line ({e}); move the file away to start again"
                ) from e
            complete += len(line)
        return complete

    def _require_same_plan(self, header: Values) -> None:
        if header.get("journal") != FORMAT:
            raise DataError(
                f"{self._path} has journal format {header.get('journal', 1)}, this version writes {FORMAT}; "
                "finish that run with the version that began it, or move the file away"
            )
        if header["plan"] != self._plan.hash:
            raise DataError(f"{self._path} is the journal of another plan; choose another output or move the file away")

    def _apply(self, values: Values) -> None:
        if "device" in values:
            device = Device(**values["device"])
            if device not in self._devices:
                self._devices.append(device)
        elif "broke" in values:
            index, broken = read_broken_line(values)
            self.broken.setdefault(index, {}).update(broken)
        else:
            entry = read_problem_line(values, self._devices[values["on"]], self._plan)
            self.entries[entry.index] = entry
            self.broken.pop(entry.index, None)


def problem_line(index: int, measured_at: str, outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Return a measured problem as JSON values, without its device."""
    by_kernel = dict(enumerate(outcomes))
    return {"done": index, "at": measured_at, "ok": outcome_columns(by_kernel), "failed": group_failures(by_kernel)}


def broken_line(index: int, outcomes: Mapping[int, Outcome]) -> dict[str, object]:
    """Return kernels that broke a worker as JSON values."""
    return {"broke": index, "kernels": [[k, o.status, o.error] for k, o in outcomes.items()]}


def read_broken_line(values: Values) -> tuple[int, dict[int, Outcome]]:
    """Return the problem and the outcomes of :func:`broken_line`."""
    return values["broke"], {int(k): Outcome(status, error) for k, status, error in values["kernels"]}


def read_problem_line(values: Values, device: Device, plan: Plan) -> JournalEntry:
    """Return the entry of :func:`problem_line`.

    Raises:
        ValueError: it lacks an outcome, or its columns do not fit together.
    """
    failed = [FailedKernels(*group) for group in values["failed"]]
    entry = JournalEntry(values["done"], values["at"], device, values["ok"], failed)
    kernels = [*entry.ok["kernel"], *(k for group in failed for k in group.kernels)]
    if not 0 <= entry.index < len(plan.items) or sorted(kernels) != list(range(len(plan.pool))):
        raise ValueError("it must have one outcome for each kernel of the pool")
    if len({len(column) for column in entry.ok.values()}) != 1:
        raise ValueError("its columns must have equal lengths")
    return entry


def _open_locked(path: Path) -> IO[bytes]:
    """Open the file at `path` for reading and appending, creating it if missing; hold a lock until it is closed."""
    no_locks = (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS)  # on this file system
    while True:
        file = path.open("a+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            if e.errno not in no_locks:
                file.close()
                raise DataError(f"{path} is in use by another run; wait for it or choose another output") from e
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
        file.close()  # another run finished and removed the file in between

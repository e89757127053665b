"""Append-only journal of a run, which keeps every measured problem through a crash.

Each line is a JSON object, a tab and a checksum: first the plan's hash, then devices, kernels that broke a worker, and
measured problems. A problem is one write followed by fsync, so a killed run loses at most the problems in progress.
Opening a journal cuts off a torn last line, and locks the file: two runs cannot write to one journal.

A damaged line costs what it held, never the start of a run: its problem is measured again, with a warning that names
the line. The checksum covers the plan's hash as well, so that lines count for their own plan even where the first line,
which states the plan, is damaged. A file without a single valid line is moved to ``FILE.damaged``.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import json
import os
import warnings
import zlib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Protocol, Self

from tilewise.collect._outcomes import LEFT_OUT, Outcome, check_outcomes, group_failures, outcome_columns, writable_text
from tilewise.collect._plan import Plan
from tilewise.collect.engines import Device
from tilewise.errors import DataError, UsageError

FORMAT = 3
_MOST_PROGRAMS = 1 << 31  # versions of programs
Values = Mapping[str, Any]  # of a line

_DAMAGE = (UsageError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


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

    Warns:
        UserWarning: lines are damaged; names the first one.

    Raises:
        DataError: the file belongs to another plan, has an older format or is in use.
    """

    def __init__(self, path: Path, plan: Plan) -> None:
        self._path = path
        self._plan = plan
        self._devices: dict[int, Device] = {}
        self.entries: dict[int, JournalEntry] = {}
        self.broken: dict[int, dict[int, Outcome]] = {}
        self._file = _open_locked(path)
        try:
            self._resume()
        except BaseException:
            self._file.close()
            raise

    def _resume(self) -> None:
        """Read the file, cut off a torn line, and begin an empty file as a journal."""
        complete, damaged = self._read()
        self._file.truncate(complete)
        if damaged:
            what = f"{self._path}:{damaged[0]}: {len(damaged)} damaged lines are skipped, their problems measured again"
            if not (self._devices or self.broken):
                aside = self._path.with_name(f"{self._path.name}.damaged")
                self._path.replace(aside)
                what = f"{self._path}: no valid line of this plan; the file is moved to {aside.name}"
                self._file.close()
                self._file = _open_locked(self._path)
            warnings.warn(what, stacklevel=4)
        if not self._path.stat().st_size:
            self._append({"journal": FORMAT, "plan": self._plan.hash, "run_id": self._plan.run_id})

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()

    def add(self, index: int, measured_at: str, device: Device, outcomes: Sequence[Outcome]) -> None:
        """Append a measured problem; on return it is on disk."""
        on = next((number for number, known in self._devices.items() if known == device), -1)
        if on < 0:
            on = max(self._devices, default=-1) + 1
            self._devices[on] = device
            self._append({"device": dataclasses.asdict(device), "number": on})
        line = {**problem_line(index, measured_at, outcomes), "on": on}
        self._append(line)
        self._apply(line)

    def note_broken(self, index: int, outcomes: Mapping[int, Outcome]) -> None:
        """Append kernels that broke a worker, so that no run tries them on this problem again."""
        line = broken_line(index, outcomes)
        self._append(line)
        self._apply(line)

    def _append(self, values: Mapping[str, object]) -> None:
        text = json.dumps(values, separators=(",", ":")).encode()
        self._file.write(b"%s\t%s\n" % (text, _checksum(text, self._plan.hash)))
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self) -> tuple[int, list[int]]:
        """Apply all valid lines of the file; return the number of bytes in complete lines, and the damaged lines."""
        complete, damaged = 0, []
        self._file.seek(0)
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                break  # torn when the run was killed
            complete += len(line)
            try:
                text, _, checksum = line.rstrip(b"\n").rpartition(b"\t")
                values = json.loads(text or line)
                if number == 1:
                    self._require_same_plan(values, text, checksum)
                if checksum != _checksum(text, self._plan.hash):
                    raise ValueError("its checksum is wrong")
                self._apply(values)
            except _Foreign:
                raise
            except _DAMAGE:
                damaged.append(number)
        return complete, damaged

    def _require_same_plan(self, header: Values, text: bytes, checksum: bytes) -> None:
        """Refuse a sound journal that is not ours. A damaged first line says nothing, so it is no reason to refuse."""
        plan, number = header["plan"], header.get("journal", 1)
        if text and checksum != _checksum(text, str(plan)):
            return
        if number != FORMAT:
            raise _Foreign(
                f"{self._path} has journal format {number}, this version writes {FORMAT}; "
                "finish that run with the version that began it, or move the file away"
            )
        if plan != self._plan.hash:
            raise _Foreign(f"{self._path} is the journal of another plan; choose another output or move the file away")

    def _apply(self, values: Values) -> None:
        if "device" in values:
            device = read_device(values["device"])
            self._devices[int(values["number"])] = device
        elif "broke" in values:
            index, broken = read_broken_line(values, self._plan)
            if index not in self.entries:
                self.broken.setdefault(index, {}).update(broken)
        elif "done" in values:
            entry = read_problem_line(values, self._devices[values["on"]], self._plan)
            self.entries[entry.index] = entry
            self.broken.pop(entry.index, None)
        elif "journal" not in values:
            raise ValueError("it holds neither a device, nor a broken kernel, nor a measured problem")


def read_device(values: Values) -> Device:
    """Return a device of its JSON values; those of earlier versions lack the version of the programs.

    Raises:
        TypeError, ValueError: the values are of another kind.
    """
    device = Device(**values)
    *texts, version = dataclasses.astuple(device)
    for text in texts:
        if text is not None:
            _require_text(text)
    if version is not None and (type(version) is not int or not 1 <= version < _MOST_PROGRAMS):
        raise ValueError(f"a version of programs must be a whole number from 1, got {version!r:.60}")
    return device


def problem_line(index: int, measured_at: str, outcomes: Sequence[Outcome]) -> dict[str, object]:
    """Return a measured problem as JSON values, without its device."""
    by_kernel = dict(enumerate(outcomes))
    return {"done": index, "at": measured_at, "ok": outcome_columns(by_kernel), "failed": group_failures(by_kernel)}


def broken_line(index: int, outcomes: Mapping[int, Outcome]) -> dict[str, object]:
    """Return kernels that broke a worker as JSON values."""
    kernels = [[k, o.status, writable_text(o.error or o.status)] for k, o in outcomes.items()]
    return {"broke": index, "kernels": kernels}


def read_broken_line(values: Values, plan: Plan) -> tuple[int, dict[int, Outcome]]:
    """Return the problem and the outcomes of :func:`broken_line`.

    Raises:
        UsageError, ValueError, TypeError, LookupError: it was not written for the plan.
    """
    check_outcomes({"kernel": []}, [(status, error, [k]) for k, status, error in values["kernels"]])
    broken = {k: Outcome(status, error) for k, status, error in values["kernels"]}
    if max(broken) >= len(plan.pool):
        raise ValueError(f"a kernel must be an index into the pool, got {max(broken)}")
    return _problem(values["broke"], plan), broken


def read_problem_line(values: Values, device: Device, plan: Plan) -> JournalEntry:
    """Return the entry of :func:`problem_line`.

    Raises:
        UsageError, ValueError, TypeError, LookupError: it was not written for the plan, or lacks an outcome.
    """
    _require_text(values["at"])
    failed = [FailedKernels(*group) for group in values["failed"]]
    entry = JournalEntry(_problem(values["done"], plan), values["at"], device, values["ok"], failed)
    check_outcomes(entry.ok, [(group.status, group.error, group.kernels) for group in failed])
    kernels = [*entry.ok["kernel"], *(k for group in failed for k in group.kernels)]
    if sorted(kernels) != list(range(len(plan.pool))):
        raise ValueError("it must have one outcome for each kernel of the pool")
    return entry


def _problem(index: object, plan: Plan) -> int:
    if type(index) is not int or not 0 <= index < len(plan.items):
        raise ValueError(f"a problem must be an index into the plan, got {index!r:.60}")
    return index


def _checksum(text: bytes, plan: str) -> bytes:
    return b"%08x" % zlib.crc32(text, zlib.crc32(plan.encode()))


def _require_text(value: object) -> None:
    if type(value) is not str:
        raise TypeError(f"must be a text, got {value!r:.60}")
    value.encode()  # a UnicodeEncodeError is a ValueError: no table can hold half a character


class _Foreign(DataError):
    """A sound journal that is not of this plan and format."""


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

"""The append-only journal of a run: what was measured stays measured, whatever kills the run.

One JSON object a line: first the plan's hash, then devices, kernels that broke a worker, and measured problems as they
come. A problem is one write followed by fsync, so a killed run loses at most the problems in hand. A torn last line is
cut off when the journal is opened again. An open journal is locked: two runs cannot write to one.
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
from typing import IO, Any, Self

from tilewise.collect.engine import Device
from tilewise.collect.plan import Plan
from tilewise.collect.results import LEFT_OUT, Outcome, columns, failures
from tilewise.errors import DataError

FORMAT = 2


@dataclasses.dataclass(frozen=True)
class Failed:
    """Kernels of a problem that failed alike."""

    status: str
    error: str
    kernels: Sequence[int]


@dataclasses.dataclass(frozen=True)
class Entry:
    """One measured problem: its index in the plan, when, on which device, and how each kernel of the pool did.

    `ok` holds columns of equal length: ``kernel`` (indices) and those of :func:`tilewise.collect.results.summary`.
    """

    index: int
    measured_at: str
    device: Device
    ok: Mapping[str, Sequence[Any]]
    failed: Sequence[Failed]

    @property
    def by_status(self) -> Counter[str]:
        """Number of kernels by status; those that the plan leaves out do not count."""
        counts = Counter({"ok": len(self.ok["kernel"])} if self.ok["kernel"] else {})
        for group in self.failed:
            if group.status != LEFT_OUT:
                counts[group.status] += len(group.kernels)
        return counts


class Journal:
    """Open (or create) the journal of a plan; use as a context manager.

    Attributes:
        entries: the measured problems, by index.
        known: kernels that broke a worker, by index, of problems that are not measured yet, by index.

    Raises:
        DataError: the file belongs to another plan, is of an older format or in use, or a line other than the last is
            damaged.
    """

    def __init__(self, path: Path, plan: Plan) -> None:
        self._path = path
        self._plan = plan
        self._devices: list[Device] = []
        self.entries: dict[int, Entry] = {}
        self.known: dict[int, dict[int, Outcome]] = {}
        self._file = _locked(path)
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
        """Record one measured problem; on return it is on the disk."""
        if device not in self._devices:
            self._devices.append(device)
            self._append({"device": dataclasses.asdict(device)})
        on, by_kernel = self._devices.index(device), dict(enumerate(outcomes))
        line = {"done": index, "at": measured_at, "on": on, "ok": columns(by_kernel), "failed": failures(by_kernel)}
        self._append(line)
        self._take(line)

    def note(self, index: int, outcomes: Mapping[int, Outcome]) -> None:
        """Record kernels that broke a worker, so that they are not tried again on this problem."""
        line = {"broke": index, "kernels": [[k, o.status, o.error] for k, o in outcomes.items()]}
        self._append(line)
        self._take(line)

    def _append(self, values: dict[str, Any]) -> None:
        self._file.write(json.dumps(values, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self) -> int:
        """Take over what stands in the file; the number of bytes that are whole."""
        whole = 0
        self._file.seek(0)
        for number, line in enumerate(self._file, 1):
            if not line.endswith(b"\n"):
                break  # torn by the kill
            try:
                values = json.loads(line)
                if number == 1:
                    self._require_mine(values)
                else:
                    self._take(values)
            except (ValueError, KeyError, TypeError, IndexError) as e:
                raise DataError(
                    f"{self._path}:{number}: damaged journal line ({e}); move the file away to start anew"
                ) from e
            whole += len(line)
        return whole

    def _require_mine(self, header: dict[str, Any]) -> None:
        if header.get("journal") != FORMAT:
            raise DataError(
                f"{self._path} has journal format {header.get('journal', 1)}, this version writes {FORMAT}; "
                "finish that run with the version that began it, or move the file away"
            )
        if header["plan"] != self._plan.hash:
            raise DataError(f"{self._path} is the journal of another plan; choose another output or move the file away")

    def _take(self, values: dict[str, Any]) -> None:
        if "device" in values:
            device = Device(**values["device"])
            if device not in self._devices:
                self._devices.append(device)
        elif "broke" in values:
            broken = {int(k): Outcome(status, error) for k, status, error in values["kernels"]}
            self.known.setdefault(values["broke"], {}).update(broken)
        else:
            self._enter(
                Entry(
                    values["done"],
                    values["at"],
                    self._devices[values["on"]],
                    values["ok"],
                    [Failed(*group) for group in values["failed"]],
                )
            )

    def _enter(self, entry: Entry) -> None:
        kernels = [*entry.ok["kernel"], *(k for group in entry.failed for k in group.kernels)]
        if not 0 <= entry.index < len(self._plan.items) or sorted(kernels) != list(range(len(self._plan.pool))):
            raise ValueError("not one outcome for each kernel of the pool")
        if len({len(column) for column in entry.ok.values()}) != 1:
            raise ValueError("columns of different lengths")
        self.entries[entry.index] = entry
        self.known.pop(entry.index, None)


def _locked(path: Path) -> IO[bytes]:
    """The file at `path`, created if need be, opened for reading and appending, and locked until it is closed."""
    while True:
        file = path.open("a+b")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            if e.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS):  # no locks on this file system
                file.close()
                raise DataError(f"{path} is in use by another run") from e
        if path.exists() and os.path.samestat(os.fstat(file.fileno()), path.stat()):
            return file
        file.close()  # another run finished and removed it in between

"""The append-only journal of a run: what was measured stays measured, whatever kills the run.

One JSON object a line: first the plan's hash, then devices and results as they come. A result is one write followed by
fsync, so a killed run loses at most the problem in hand. A torn last line is cut off when the journal is opened again.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import IO, Any, Self

from tilewise.collect.engine import Device
from tilewise.collect.plan import Plan
from tilewise.collect.results import Outcome, summary
from tilewise.errors import DataError


@dataclasses.dataclass(frozen=True)
class Entry:
    """One measured problem: its index in the plan, when, on which device, one column dict a kernel."""

    index: int
    measured_at: str
    device: Device
    kernels: Sequence[dict[str, Any]]  # status, error, and the columns of results.summary where ok


class Journal:
    """Open (or create) the journal of a plan; use as a context manager.

    Raises:
        DataError: the file belongs to another plan, or a line other than the last is damaged.
    """

    def __init__(self, path: Path, plan: Plan) -> None:
        self._path = path
        self._devices: list[Device] = []
        self.entries: dict[int, Entry] = {}
        if path.exists():
            whole = self._read(plan)
            os.truncate(path, whole)
        self._file: IO[bytes] = path.open("ab")
        if not path.stat().st_size:
            self._append({"plan": plan.hash, "run_id": plan.run_id})

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
        kernels = [
            {"status": o.status, "error": o.error, **(summary(o.samples) if o.samples else {})} for o in outcomes
        ]
        self._append({"index": index, "at": measured_at, "on": self._devices.index(device), "kernels": kernels})
        self.entries[index] = Entry(index, measured_at, device, kernels)

    def _append(self, values: dict[str, Any]) -> None:
        self._file.write(json.dumps(values, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self, plan: Plan) -> int:
        """Take over what stands in the file; the number of bytes that are whole."""
        whole = 0
        for number, line in self._lines():
            if not line.endswith(b"\n"):
                break  # torn by the kill
            try:
                self._take(json.loads(line), plan)
            except (ValueError, KeyError, TypeError, IndexError) as e:
                raise DataError(
                    f"{self._path}:{number}: damaged journal line ({e}); move the file away to start anew"
                ) from e
            whole += len(line)
        return whole

    def _lines(self) -> Iterator[tuple[int, bytes]]:
        with self._path.open("rb") as f:
            yield from enumerate(f, 1)

    def _take(self, values: dict[str, Any], plan: Plan) -> None:
        if "plan" in values:
            if values["plan"] != plan.hash:
                raise DataError(f"{self._path} is the journal of another plan; choose another output or move it away")
        elif "device" in values:
            self._devices.append(Device(**values["device"]))
        else:
            entry = Entry(values["index"], values["at"], self._devices[values["on"]], values["kernels"])
            self.entries[entry.index] = entry

"""What was measured on the spot, remembered: one small JSON file a problem, below ``TILEWISE_CACHE``.

::

    measured/<target>/<hash of the context>/<hash of the problem>.json

The context is all that can change the answer beside the problem: the machine (GPU, driver, torch, triton, the
kernels' sources), the target and the pool. A file says what it is about and carries a checksum of itself; it is written
aside and renamed. One that is damaged, or lies where it does not belong, is as good as none: the problem is measured
again and the file replaced.

Everything that measuring tells of each kernel is kept, so that entries can become measurements to learn from
(:mod:`tilewise.dispatch.exporting`). Files of format 1 held medians alone; they are still read.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tilewise.dispatch.machine import Machine
from tilewise.errors import DataError, UsageError
from tilewise.files import write_bytes
from tilewise.kernels.pool import Pool
from tilewise.ops import OPS, Problem, Target

if TYPE_CHECKING:
    from tilewise.collect.results import Outcome

_log = logging.getLogger(__name__)

FORMAT = 2
FOLDER = "measured"  # below TILEWISE_CACHE
_MAX_BYTES = 1 << 21  # a pool of 4,608 kernels takes 0.4 MB


@dataclass(frozen=True)
class Context:
    """All that can change the answer beside the problem.

    Attributes:
        target: the target's name.
        pool: its hash.
        machine: where it was measured.
    """

    target: str
    pool: str
    machine: Machine

    @classmethod
    def of(cls, target: Target, pool: Pool, machine: Machine) -> Self:
        """The context of a target's pool on a machine."""
        return cls(target.name, pool.hash, machine)

    @cached_property
    def folder(self) -> Path:
        """Where its entries lie, below :data:`FOLDER`."""
        return Path(self.target, _digest(asdict(self))[:16])


@dataclass(frozen=True)
class Entry:
    """How the kernels of a pool did on one problem.

    Attributes:
        context: see :class:`Context`.
        problem: the problem.
        ok: of the kernels that ran and were right, fastest first: columns ``kernel`` (indices into the pool) and those
            of :func:`tilewise.collect.results.summary`; of format 1 ``latency_ms`` alone.
        failed: (status, error, kernels) of the others that were tried.
        measured_at: UTC, ISO 8601.
    """

    context: Context
    problem: Problem
    ok: Mapping[str, Sequence[Any]]
    failed: Sequence[tuple[str, str, Sequence[int]]]
    measured_at: str

    @classmethod
    def of(cls, context: Context, problem: Problem, outcomes: Mapping[int, Outcome], measured_at: str) -> Self:
        """What measuring gave, by kernel."""
        from tilewise.collect.results import columns, failures  # only what was just measured needs it

        found = columns(outcomes)
        order = sorted(range(len(found["kernel"])), key=lambda i: (found["latency_ms"][i], found["kernel"][i]))
        ok = {name: [values[i] for i in order] for name, values in found.items()}
        return cls(context, problem, ok, failures(dict(sorted(outcomes.items()))), measured_at)

    @property
    def latency_ms(self) -> tuple[tuple[int, float], ...]:
        """(kernel, median ms) of those that ran and were right, fastest first."""
        return tuple(zip(self.ok["kernel"], self.ok["latency_ms"], strict=True))

    @property
    def tried(self) -> frozenset[int]:
        """The kernels that were measured."""
        return frozenset(self.ok["kernel"]).union(*(kernels for _, _, kernels in self.failed))

    @property
    def path(self) -> Path:
        """Where it lies, below :data:`FOLDER`."""
        return self.context.folder / f"{_digest(self.problem.to_dict())[:32]}.json"

    def dumps(self) -> bytes:
        """The file's content: stable, with a checksum over all the rest."""
        values = {"format": FORMAT, **asdict(self), "problem": {"op": self.problem.op, **self.problem.to_dict()}}
        return (json.dumps(values | {"sha256": _digest(values)}) + "\n").encode()

    @classmethod
    def loads(cls, data: bytes, path: Path) -> Self:
        """The inverse of :meth:`dumps`.

        Args:
            data: a file's content.
            path: where it lies, below :data:`FOLDER`.

        Raises:
            DataError: the content is damaged, of another format, or lies where it does not belong.
        """
        try:
            values = json.loads(data)
            checksum = values.pop("sha256")
            if checksum != _digest(values):
                raise DataError("its checksum is wrong")
            if (number := values.pop("format")) not in (1, FORMAT):
                raise DataError("it is of another format")
            problem, context = dict(values["problem"]), values["context"]
            ok, failed = _first_format(values) if number == 1 else (values["ok"], values["failed"])
            entry = cls(
                Context(context["target"], context["pool"], Machine(**context["machine"])),
                OPS[problem.pop("op")].from_dict(problem),
                ok,
                [(status, error, kernels) for status, error, kernels in failed],
                str(values["measured_at"]),
            )
            entry._check(path)
        except DataError:
            raise
        except (UsageError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as e:
            raise DataError(f"it is no measurement: {e!r:.200}") from e
        return entry

    def _check(self, path: Path) -> None:
        times, kernels = self.ok["latency_ms"], [*self.ok["kernel"], *(k for _, _, ks in self.failed for k in ks)]
        figures = [v for name, column in self.ok.items() if name != "kernel" for v in column if v is not None]
        if not times or times != sorted(times) or any(len(column) != len(times) for column in self.ok.values()):
            raise DataError("its times are none")
        if not all(type(v) in (int, float) and math.isfinite(v) and v > 0 for v in [*times, *figures]):
            raise DataError("its figures are none")
        if not all(type(k) is int and k >= 0 for k in kernels) or len(set(kernels)) < len(kernels):
            raise DataError("its kernels are none")
        if not all(type(text) is str for status, error, _ in self.failed for text in (status, error)):
            raise DataError("its failures are none")
        if self.path != path:
            raise DataError("it lies where it does not belong")

    @property
    def standing(self) -> tuple[int, str, bytes]:
        """Of two entries about the same the greater is kept: more kernels, then the later, then one for all to pick."""
        return len(self.tried), self.measured_at, self.dumps()


def read(root: Path, path: Path) -> Entry:
    """One entry.

    Args:
        root: the folder :data:`FOLDER`.
        path: of the entry, below `root`.

    Raises:
        DataError: it is none; see :meth:`Entry.loads`.
        OSError: there is no such file, or it cannot be read.
    """
    file = root / path
    if file.stat().st_size > _MAX_BYTES:
        raise DataError(f"it is larger than {_MAX_BYTES} bytes")
    return Entry.loads(file.read_bytes(), path)


class Memory:
    """The entries of one context: read at once, kept in memory, added to as problems are measured.

    Threads may share it. Those of other processes are seen when :meth:`look` asks for a problem's file.

    Args:
        root: the folder :data:`FOLDER`.
        context: whose entries.
        n_kernels: of the pool.
    """

    def __init__(self, root: Path, context: Context, n_kernels: int) -> None:
        self._root, self._context, self._n_kernels = root, context, n_kernels
        self._entries: dict[Problem, Entry] = {}
        folder = root / context.folder
        for file in folder.glob("*.json") if folder.is_dir() else ():
            entry = self._read(context.folder / file.name)
            if entry is not None:
                self._entries[entry.problem] = entry

    def get(self, problem: Problem) -> Entry | None:
        """What is known of a problem, without asking the disk."""
        return self._entries.get(problem)

    def look(self, problem: Problem) -> Entry | None:
        """What is known of a problem, asking the disk: another process may have measured it."""
        found = self._read(self._entry(problem).path)
        known = self._entries.get(problem)
        if found is not None and (known is None or found.standing > known.standing):
            self._entries[problem] = found
        return self._entries.get(problem)

    def put(self, problem: Problem, outcomes: Mapping[int, Outcome], measured_at: str) -> Entry:
        """Remember how each kernel did; where the disk cannot be written, in memory alone."""
        entry = Entry.of(self._context, problem, outcomes, measured_at)
        self._entries[problem] = entry
        try:
            write_bytes(self._root / entry.path, entry.dumps())
        except OSError as e:
            _log.warning("%s: the measurement cannot be kept: %s", problem, e)
        return entry

    def _entry(self, problem: Problem) -> Entry:
        return Entry(self._context, problem, {}, (), "")

    def _read(self, path: Path) -> Entry | None:
        try:
            entry = read(self._root, path)
            if max(entry.tried) >= self._n_kernels:
                raise DataError("its kernels are not of this pool")
        except FileNotFoundError:
            return None
        except (DataError, OSError) as e:
            _log.warning("%s is ignored, and replaced when the problem is measured: %s", self._root / path, e)
            return None
        return entry


def _digest(values: Any) -> str:
    return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def _first_format(values: Mapping[str, Any]) -> tuple[dict[str, list[Any]], list[tuple[str, str, list[int]]]]:
    """`ok` and `failed` of what held (kernel, ms), fastest first, and (kernel, status)."""
    kernels, times = ([pair[i] for pair in values["latency_ms"]] for i in (0, 1))
    return {"kernel": kernels, "latency_ms": times}, [(status, status, [kernel]) for kernel, status in values["failed"]]

"""The cache of measurements made on the spot: one small JSON file per problem below ``TILEWISE_CACHE``.

::

    measured/<target>/<hash of the context>/<hash of the problem>.json

The context is everything except the problem that can change the result: the machine (GPU, driver, torch, triton, the
kernels' code), the target and the pool. A file states its context and problem and carries a checksum; it is written
beside its place and renamed. A file that is damaged or misplaced counts as missing: the problem is measured again and
the file replaced.

A file keeps all columns that measuring gives, so that it can be exported as training data. Files of format 1 held
medians only; they are still read.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tilewise.dispatch.measuring._machine import Machine
from tilewise.errors import DataError, UsageError
from tilewise.files import Plain, digest_of, dump_checked, load_checked, write_bytes
from tilewise.kernels import Pool
from tilewise.ops import OPS, Problem, Target

if TYPE_CHECKING:
    from tilewise.collect import Outcome

_log = logging.getLogger(__name__)

FORMAT = 2
_MAX_BYTES = 1 << 21  # a pool of 4,608 kernels takes 0.4 MB

Columns = Mapping[str, Sequence[Plain]]  # numbers; those of a percentile may be None
Failures = Sequence[tuple[str, str, Sequence[int]]]  # (status, error, kernels)


@dataclass(frozen=True)
class MeasuredContext:
    """Everything except the problem that can change the result of measuring.

    Attributes:
        target: the target's name.
        pool: hash of the pool.
        machine: the machine that measured.
    """

    target: str
    pool: str
    machine: Machine

    @classmethod
    def of(cls, target: Target, pool: Pool, machine: Machine) -> Self:
        """Return the context of a target's pool on a machine."""
        return cls(target.name, pool.hash, machine)

    @cached_property
    def folder(self) -> Path:
        """Folder of the context's entries, below the measured folder."""
        return Path(self.target, digest_of(asdict(self))[:16])


@dataclass(frozen=True)
class MeasuredEntry:
    """The measurements of a pool's kernels on one problem.

    Attributes:
        context: see :class:`MeasuredContext`.
        problem: the problem.
        ok: columns of the correct kernels, fastest first: ``kernel`` (indices into the pool) and those of
            :func:`tilewise.collect.summarize_samples`; entries of format 1 have ``latency_ms`` only.
        failed: (status, error, kernels) of the other kernels that were tried.
        measured_at: UTC, ISO 8601.
    """

    context: MeasuredContext
    problem: Problem
    ok: Columns
    failed: Failures
    measured_at: str

    @classmethod
    def of(cls, context: MeasuredContext, problem: Problem, outcomes: Mapping[int, Outcome], measured_at: str) -> Self:
        """Build an entry from the outcome of each kernel."""
        from tilewise.collect import group_failures, outcome_columns  # only needed after measuring

        columns = outcome_columns(outcomes)
        order = sorted(range(len(columns["kernel"])), key=lambda i: (columns["latency_ms"][i], columns["kernel"][i]))
        ok = {name: [values[i] for i in order] for name, values in columns.items()}
        return cls(context, problem, ok, group_failures(dict(sorted(outcomes.items()))), measured_at)

    @property
    def latency_ms(self) -> tuple[tuple[int, float], ...]:
        """(kernel, median in ms) of the correct kernels, fastest first."""
        return tuple(zip(self.ok["kernel"], self.ok["latency_ms"], strict=True))

    @property
    def tried(self) -> frozenset[int]:
        """The kernels that were measured, whether correct or not."""
        return frozenset(self.ok["kernel"]).union(*(kernels for _, _, kernels in self.failed))

    @property
    def path(self) -> Path:
        """File of the entry, below the measured folder."""
        return entry_path(self.context, self.problem)

    @property
    def precedence(self) -> tuple[int, str, bytes]:
        """Sort key among entries of the same problem: the greatest is kept.

        More kernels win, then the later entry; the bytes make the choice independent of the order of merging.
        """
        return len(self.tried), self.measured_at, self.dumps()

    def dumps(self) -> bytes:
        """Return the file's content, with a checksum of the rest; equal entries give equal bytes."""
        values = {"format": FORMAT, **asdict(self), "problem": {"op": self.problem.op, **self.problem.stated()}}
        return dump_checked(values)

    @classmethod
    def loads(cls, data: bytes, path: Path) -> Self:
        """Parse and check the output of :meth:`dumps`.

        Args:
            data: content of a file.
            path: of the file, below the measured folder.

        Raises:
            DataError: the content is damaged, of another format, or does not match the file's name.
        """
        try:
            values = load_checked(data)
            if (number := values.pop("format")) not in (1, FORMAT):
                raise DataError(f"its format is {number}; this version reads 1 and {FORMAT}")
            problem, context = dict(values["problem"]), values["context"]
            ok, failed = _from_first_format(values) if number == 1 else (values["ok"], values["failed"])
            entry = cls(
                MeasuredContext(context["target"], context["pool"], Machine(**context["machine"])),
                OPS[problem.pop("op")].from_dict(problem),
                ok,
                [(status, error, kernels) for status, error, kernels in failed],
                str(values["measured_at"]),
            )
            entry._check(path)
        except DataError:
            raise
        except (UsageError, ValueError, LookupError, TypeError, AttributeError, OverflowError, RecursionError) as e:
            raise DataError(f"it is not an entry of a measured cache: {e!r:.200}") from e
        return entry

    def _check(self, path: Path) -> None:
        from tilewise.collect import check_outcomes  # light, and only needed where there are entries

        check_outcomes(self.ok, self.failed)
        times = list(self.ok["latency_ms"])
        if not times or times != sorted(times):
            raise DataError("times are missing or unsorted")
        figures = [v for name, column in self.ok.items() if name != "kernel" for v in column if v is not None]
        if not all(math.isfinite(v) and v > 0 for v in figures):
            raise DataError("figures must be positive finite numbers")
        if self.path != path:
            raise DataError("the file's name does not match the key of its contents")


def entry_path(context: MeasuredContext, problem: Problem) -> Path:
    """Return the file of a problem's entry, below the measured folder."""
    return context.folder / f"{digest_of(problem.stated())[:32]}.json"


def read_entry(root: Path, path: Path) -> MeasuredEntry:
    """Read one entry.

    Args:
        root: the measured folder.
        path: of the entry, below `root`.

    Raises:
        DataError: the file is not a valid entry; see :meth:`MeasuredEntry.loads`.
        OSError: the file does not exist or cannot be read.
    """
    file = root / path
    if file.stat().st_size > _MAX_BYTES:
        raise DataError(f"it is larger than {_MAX_BYTES} bytes")
    return MeasuredEntry.loads(file.read_bytes(), path)


class MeasuredCache:
    """The entries of one context: read once, kept in memory, extended as problems are measured.

    Threads may share it. Entries of other processes become visible when :meth:`read` asks for a problem's file.

    Args:
        root: the measured folder.
        context: of the entries.
        n_kernels: number of kernels in the pool.
    """

    def __init__(self, root: Path, context: MeasuredContext, n_kernels: int) -> None:
        self._root, self._context, self._n_kernels = root, context, n_kernels
        self._entries: dict[Problem, MeasuredEntry] = {}
        folder = root / context.folder
        for file in folder.glob("*.json") if folder.is_dir() else ():
            entry = self._read(context.folder / file.name)
            if entry is not None:
                self._entries[entry.problem] = entry

    def get(self, problem: Problem) -> MeasuredEntry | None:
        """Return the entry in memory, or None."""
        return self._entries.get(problem)

    def read(self, problem: Problem) -> MeasuredEntry | None:
        """Return the entry in memory or on disk, as another process may have measured meanwhile; None without one."""
        found = self._read(entry_path(self._context, problem))
        known = self._entries.get(problem)
        if found is not None and (known is None or found.precedence > known.precedence):
            self._entries[problem] = found
        return self._entries.get(problem)

    def put(self, problem: Problem, outcomes: Mapping[int, Outcome], measured_at: str) -> MeasuredEntry:
        """Store the outcome of each kernel; if the disk cannot be written, only in memory."""
        entry = MeasuredEntry.of(self._context, problem, outcomes, measured_at)
        self._entries[problem] = entry
        try:
            write_bytes(self._root / entry.path, entry.dumps())
        except OSError as e:
            _log.warning("%s: the measurement cannot be kept: %s", problem, e)
        return entry

    def _read(self, path: Path) -> MeasuredEntry | None:
        try:
            entry = read_entry(self._root, path)
            if max(entry.tried) >= self._n_kernels:
                raise DataError(f"kernels must be below {self._n_kernels}, the size of this pool")
        except FileNotFoundError:
            return None
        except (DataError, OSError) as e:
            _log.warning("%s is ignored, and replaced when the problem is measured: %s", self._root / path, e)
            return None
        return entry


def _from_first_format(values: Mapping[str, Plain]) -> tuple[Columns, Failures]:
    """Return `ok` and `failed` of a format 1 entry: (kernel, ms) pairs, fastest first, and (kernel, status) pairs."""
    kernels, times = ([pair[i] for pair in values["latency_ms"]] for i in (0, 1))
    return {"kernel": kernels, "latency_ms": times}, [(status, status, [kernel]) for kernel, status in values["failed"]]

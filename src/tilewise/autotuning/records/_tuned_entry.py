"""Records of tuning: the times of a kernel's configurations for one key on one machine.

Each record is one file below the folder ``tuned`` of the cache::

    tuned/<kernel>/<hash of the context>/<hash of the key>.json

The context is everything besides key and configuration that can change a time: the kernel's code and the machine.
Times are kept by the name of the configuration, so a changed list of configurations uses all times that it still has.
A file is written beside its place and renamed, and carries a checksum; a damaged or misplaced file counts as missing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

from tilewise.collect import Outcome, outcome_columns
from tilewise.dispatch.measuring import Machine
from tilewise.errors import DataError
from tilewise.files import Plain, digest_of, dump_checked, load_checked

FORMAT = 1
Size = int | str
Figures = Mapping[str, float | int | None]  # measurement columns of one configuration; latency_ms is never None


@dataclass(frozen=True)
class TunedContext:
    """Everything besides key and configuration that can change a time.

    Attributes:
        kernel: the kernel's name.
        machine: the machine; its ``kernels`` is the hash of the kernel's code.
        version: text that the user adds, e.g. the version of a library.
    """

    kernel: str
    machine: Machine
    version: str = ""

    @cached_property
    def folder(self) -> Path:
        """Folder of the context's records, below the folder of all records."""
        return Path(self.kernel, digest_of(asdict(self))[:16])


@dataclass(frozen=True)
class TunedKey:
    """The call that a record holds for.

    Attributes:
        sizes: the key's parameters by name.
        dtypes: element types of the tensors, in the order of the parameters.
    """

    sizes: Mapping[str, Size]
    dtypes: tuple[str, ...]

    @cached_property
    def file(self) -> str:
        """Name of the record's file."""
        return f"{digest_of({'sizes': dict(self.sizes), 'dtypes': list(self.dtypes)})[:32]}.json"

    def __str__(self) -> str:
        sizes = " ".join(f"{name}={value}" for name, value in self.sizes.items())
        return f"{sizes} ({', '.join(self.dtypes)})" if self.dtypes else sizes


@dataclass(frozen=True)
class TunedEntry:
    """The measurements of one key.

    Attributes:
        context: see :class:`TunedContext`.
        key: see :class:`TunedKey`.
        measured: measurement columns by configuration.
        failed: (status, error) of the configurations that did not run.
        measured_at: UTC, ISO 8601, of the last measurement.
    """

    context: TunedContext
    key: TunedKey
    measured: Mapping[str, Figures]
    failed: Mapping[str, tuple[str, str]]
    measured_at: str

    @classmethod
    def of(cls, context: TunedContext, key: TunedKey, outcomes: Mapping[str, Outcome], measured_at: str) -> Self:
        """Build a record from the outcome of each configuration."""
        names = list(outcomes)
        columns = outcome_columns({i: outcomes[name] for i, name in enumerate(names)})
        rows = {
            names[int(i or 0)]: {figure: column[at] for figure, column in columns.items() if figure != "kernel"}
            for at, i in enumerate(columns["kernel"])
        }
        failed = {n: (o.status, o.error or o.status) for n, o in outcomes.items() if o.samples is None}
        return cls(context, key, rows, failed, measured_at)

    @property
    def tried(self) -> frozenset[str]:
        """Names of all configurations that were measured, whether they ran or not."""
        return frozenset((*self.measured, *self.failed))

    def fastest(self, among: Iterable[str]) -> str | None:
        """Return the fastest of these configurations, the first of equally fast ones; None if none of them ran."""
        known = [name for name in among if name in self.measured]
        return min(known, key=self.latency_ms, default=None)

    def latency_ms(self, name: str) -> float:
        """Return the median time of a configuration that ran."""
        return float(self.measured[name]["latency_ms"] or 0)

    def extended(self, other: TunedEntry) -> TunedEntry:
        """Return the measurements of both; those of `other` count where both have a configuration."""
        kept = {name: error for name, error in self.failed.items() if name not in other.measured}
        measured = {name: row for name, row in self.measured.items() if name not in other.failed}
        return TunedEntry(
            self.context,
            self.key,
            {**measured, **other.measured},
            {**kept, **other.failed},
            max(self.measured_at, other.measured_at),
        )

    def dumps(self) -> bytes:
        """Return the file's content."""
        return dump_checked({"format": FORMAT, **asdict(self)})

    @classmethod
    def loads(cls, data: bytes, path: Path) -> Self:
        """Parse and check the output of :meth:`dumps`.

        Args:
            data: content of a file.
            path: of the file, below the folder of all records.

        Raises:
            DataError: the content is damaged, of another format, or does not match the file's name.
        """
        try:
            values = load_checked(data)
            if values["format"] != FORMAT:
                raise DataError(f"its format is {values['format']}; this version reads {FORMAT}")
            entry = cls.from_dict(values)
            entry._check(path)
        except DataError:
            raise
        except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as e:
            raise DataError(f"it is not a record of tuning: {e!r:.200}") from e
        return entry

    @classmethod
    def from_dict(cls, values: Mapping[str, Plain]) -> Self:
        """Build a record from plain data, unchecked.

        Raises:
            LookupError, TypeError, ValueError, AttributeError: the data has another form.
        """
        context, key = values["context"], values["key"]
        return cls(
            TunedContext(str(context["kernel"]), Machine(**context["machine"]), str(context["version"])),
            TunedKey(dict(key["sizes"]), tuple(map(str, key["dtypes"]))),
            {str(name): dict(row) for name, row in values["measured"].items()},
            {str(name): (str(status), str(error)) for name, (status, error) in values["failed"].items()},
            str(values["measured_at"]),
        )

    def _check(self, path: Path) -> None:
        if not all(_is_size(value) for value in self.key.sizes.values()):
            raise DataError("the key must consist of whole numbers and texts")
        if not all(_is_figure(row.get("latency_ms")) for row in self.measured.values()):
            raise DataError("each measured configuration needs latency_ms, a positive number")
        if not all(value is None or _is_figure(value) for row in self.measured.values() for value in row.values()):
            raise DataError("figures must be positive finite numbers")
        if self.measured.keys() & self.failed.keys():
            raise DataError("a configuration cannot both run and fail")
        if self.context.folder / self.key.file != path:
            raise DataError("the file's name does not match the key of its contents")


def _is_size(value: object) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool)


def _is_figure(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value > 0

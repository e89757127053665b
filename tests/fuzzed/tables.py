"""Readers of tables, instances and command lines under fuzz; their guarantees stand with their own tests."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from data import reader_fuzz
from fuzzed.contract import Outcome, Reader
from kernels import instance_fuzz
from mutate import Damage


@dataclass(frozen=True)
class _TableReader(Reader):
    """An importer, which must also say how much of a damaged file it could not read."""

    name: str = ""

    def check(self, damages: list[Damage], folder: Path) -> Outcome:
        """Import the damaged file and compare its rows with the most that the damages can have cost."""
        return reader_fuzz.check(self.name, damages, folder, schema=False)


def _importer(name: str) -> Reader:
    def read(content: bytes, folder: Path) -> Outcome:
        return reader_fuzz.read(name, content, folder)[0]

    lines = False if name == "json" else None
    return _TableReader(lambda: reader_fuzz.sample(name).content, read, lines, name=name)


def _instances(name: str) -> Reader:
    def read(content: bytes, folder: Path) -> Outcome:
        return instance_fuzz.read(name, content, folder)

    lines = False if name in ("traits", "dispatcher", "pool") else None
    return Reader(lambda: instance_fuzz.sample(name), read, lines)


READERS = {f"table_{name}": _importer(name) for name in reader_fuzz.READERS} | {
    f"instances_{name}": _instances(name) for name in instance_fuzz.READERS
}

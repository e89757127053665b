"""The measured cache as a whole: listing it, merging those of several machines, removing what no longer serves."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tilewise.dispatch.machine import kernels_hash
from tilewise.dispatch.measured import FOLDER, Context, Entry, read
from tilewise.errors import DataError
from tilewise.files import write_bytes

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Merged:
    """What a merge did: entries that are new, that replaced one, that were no better, and files that are none."""

    added: int = 0
    replaced: int = 0
    kept: int = 0
    damaged: int = 0


def measured_folder(cache: str | Path) -> Path:
    """The folder of measurements in a cache; `cache` itself where it is one.

    Raises:
        DataError: there is none.
    """
    cache = Path(cache)
    folder = cache if cache.name == FOLDER else cache / FOLDER
    if not folder.is_dir():
        raise DataError(f"{cache}: there are no measurements: {folder} is no folder")
    return folder


def entries(root: Path) -> Iterator[tuple[Path, Entry | DataError]]:
    """Every file of a cache by its path below `root`, with its entry, or what is wrong with it."""
    for file in sorted(root.glob("*/*/*.json")):
        path = file.relative_to(root)
        try:
            yield path, read(root, path)
        except (DataError, OSError) as e:
            yield path, DataError(f"{file}: {e}")


def contexts(root: Path) -> dict[Context, list[Entry]]:
    """The sound entries by what they hold for."""
    found: dict[Context, list[Entry]] = {}
    for _, entry in entries(root):
        if isinstance(entry, Entry):
            found.setdefault(entry.context, []).append(entry)
    return found


def merge(source: Path, root: Path) -> Merged:
    """Take the entries of another cache over: of two about the same the one with more kernels stays, then the later.

    The order in which caches are merged makes no difference.

    Args:
        source: the other cache's folder of measurements.
        root: the one to merge into.

    Raises:
        OSError: an entry cannot be written.
    """
    added = replaced = kept = damaged = 0
    for path, entry in entries(source):
        if not isinstance(entry, Entry):
            _log.warning("left out: %s", entry)
            damaged += 1
            continue
        try:
            present: Entry | None = read(root, path)
        except (DataError, OSError):
            present = None
        if present is not None and present.standing >= entry.standing:
            kept += 1
            continue
        replaced += (root / path).exists()
        added += not (root / path).exists()
        write_bytes(root / path, entry.dumps())
    return Merged(added, replaced, kept, damaged)


def prune(root: Path) -> int:
    """Remove damaged files, and entries of kernels whose sources were others; how many were removed.

    Raises:
        OSError: a file cannot be removed.
    """
    removed = 0
    for path, entry in entries(root):
        if not isinstance(entry, Entry) or entry.context.machine.kernels != kernels_hash():
            (root / path).unlink(missing_ok=True)
            removed += 1
    for folder in root.glob("*/*"):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    return removed

"""Listing, merging and pruning of whole caches of measurements."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tilewise.dispatch.measuring._machine import kernels_hash
from tilewise.dispatch.measuring._measured_cache import MeasuredContext, MeasuredEntry, read_entry
from tilewise.dispatch.sources import MEASURED_FOLDER
from tilewise.errors import DataError
from tilewise.files import write_bytes

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class MergeCounts:
    """Counts of added, replaced and unchanged entries, and of invalid files."""

    added: int = 0
    replaced: int = 0
    unchanged: int = 0
    invalid: int = 0


def find_measured_folder(cache: str | Path) -> Path:
    """Return the folder of measurements in a cache, or `cache` itself if it is such a folder.

    Raises:
        DataError: there is no such folder.
    """
    cache = Path(cache)
    folder = cache if cache.name == MEASURED_FOLDER else cache / MEASURED_FOLDER
    if not folder.is_dir():
        raise DataError(f"{cache}: has no measurements: {folder} is not a folder")
    return folder


def read_entries(root: Path) -> Iterator[tuple[Path, MeasuredEntry | DataError]]:
    """Yield each file's path below `root` with its entry, or with the reason why it is invalid."""
    for file in sorted(root.glob("*/*/*.json")):
        path = file.relative_to(root)
        try:
            yield path, read_entry(root, path)
        except (DataError, OSError) as e:
            yield path, DataError(f"{file}: {e}")


def entries_by_context(root: Path) -> dict[MeasuredContext, list[MeasuredEntry]]:
    """Return the valid entries below `root`, grouped by their context."""
    groups: dict[MeasuredContext, list[MeasuredEntry]] = {}
    for _, entry in read_entries(root):
        if isinstance(entry, MeasuredEntry):
            groups.setdefault(entry.context, []).append(entry)
    return groups


def merge_caches(source: Path, root: Path) -> MergeCounts:
    """Copy the entries of one cache into another; the order in which caches are merged makes no difference.

    If both have an entry for the same problem, the one with more kernels wins, then the later one.

    Args:
        source: folder of measurements to copy from.
        root: folder of measurements to merge into.

    Raises:
        OSError: an entry cannot be written.
    """
    added = replaced = unchanged = invalid = 0
    for path, entry in read_entries(source):
        if not isinstance(entry, MeasuredEntry):
            _log.warning("not merged: %s", entry)
            invalid += 1
            continue
        try:
            present: MeasuredEntry | None = read_entry(root, path)
        except (DataError, OSError):
            present = None
        if present is not None and present.precedence >= entry.precedence:
            unchanged += 1
            continue
        replaced += (root / path).exists()
        added += not (root / path).exists()
        write_bytes(root / path, entry.dumps())
    return MergeCounts(added, replaced, unchanged, invalid)


def prune_cache(root: Path) -> int:
    """Remove invalid files and entries measured with other kernel code; return the number of files removed.

    Raises:
        OSError: a file cannot be removed.
    """
    removed = 0
    for path, entry in read_entries(root):
        if not isinstance(entry, MeasuredEntry) or entry.context.machine.kernels != kernels_hash():
            (root / path).unlink(missing_ok=True)
            removed += 1
    for folder in root.glob("*/*"):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()
    return removed

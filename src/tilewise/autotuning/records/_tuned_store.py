"""The store of a context's records: read, locked while one process measures, and extended."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tilewise.autotuning.records._tuned_entry import TunedContext, TunedEntry, TunedKey
from tilewise.dispatch.sources import cache_folder
from tilewise.errors import DataError
from tilewise.files import locked, write_bytes

TUNED_FOLDER = "tuned"  # of all records, in the cache folder
_MAX_BYTES = 1 << 21  # a record of 1,000 configurations takes 0.2 MB
_log = logging.getLogger(__name__)


class TunedStore:
    """Records of one context. Threads and processes may share the files.

    Args:
        context: of the records.
        root: folder of all records; None for ``tuned`` in the user's cache.
    """

    def __init__(self, context: TunedContext, root: Path | None = None) -> None:
        self.context = context
        self._root = cache_folder() / TUNED_FOLDER if root is None else root

    def path(self, key: TunedKey) -> Path:
        """Return the file of a key's record."""
        return self._root / self.context.folder / key.file

    def read(self, key: TunedKey) -> TunedEntry | None:
        """Return a key's record; None if there is no valid one."""
        return read_record(self._root, f"{self.context.folder}/{key.file}")

    def extend(self, new: TunedEntry) -> TunedEntry:
        """Add measurements to a key's record, and return it; the caller holds :meth:`lock`."""
        known = self.read(new.key)
        entry = new if known is None else known.extended(new)
        try:
            write_bytes(self.path(new.key), entry.dumps())
        except OSError as e:
            _log.warning("%s: %s: the measurements cannot be kept: %s", self.context.kernel, new.key, e)
        return entry

    @contextmanager
    def lock(self, key: TunedKey, *, wait: bool) -> Iterator[bool]:
        """Keep other processes from measuring the same key during the block.

        Args:
            key: the key.
            wait: whether to wait while another process measures it.

        Yields:
            Whether the key is locked; False, at once, while another process measures it and `wait` is False. A cache
            that cannot be written cannot be locked either, and yields True.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(locked(self.path(key).with_suffix(".lock"), wait=wait))
                held = True
            except BlockingIOError:
                held = False
            except OSError:
                held = True
            yield held

    @contextmanager
    def device(self, name: str) -> Iterator[None]:
        """Let one process at a time measure on a device, as simultaneous measurements disturb each other."""
        with ExitStack() as stack:
            with suppress(OSError):
                stack.enter_context(locked(self._root / f".{name}.lock"))
            yield


def read_record(root: Path, name: str) -> TunedEntry | None:
    """Read one record, or return None if there is no valid one; an invalid one is logged.

    Args:
        root: folder of all records.
        name: path of the record below `root`, as text: a new key's choice waits for this, and joining paths is slow.
    """
    path = f"{root}/{name}"
    try:
        if os.stat(path).st_size > _MAX_BYTES:
            raise DataError(f"it is larger than {_MAX_BYTES} bytes")
        return TunedEntry.loads(Path(path).read_bytes(), Path(name))
    except FileNotFoundError:
        return None
    except (DataError, OSError) as e:
        _log.warning("%s is ignored, and replaced when the key is measured: %s", path, e)
        return None


def read_records(root: Path, kernel: str) -> list[TunedEntry]:
    """Return all valid records of a kernel, in the order of their files."""
    files = sorted(str(path.relative_to(root)) for path in root.glob(f"{kernel}/*/*.json"))
    return [entry for path in files if (entry := read_record(root, path)) is not None]

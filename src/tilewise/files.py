"""Files: a reader sees the old content or the new, never half of either; and locks between processes."""

from __future__ import annotations

import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write `data` to `path` at once: beside it first, then renamed over it; folders are made as needed.

    Raises:
        OSError: the folder cannot be written; what stood at `path` is still there.
    """
    _put(Path(path), data, os.replace)


def create_bytes(path: str | Path, data: bytes) -> None:
    """Write `data` to a file that does not exist yet, at once; of two who race to create it, one is refused.

    Raises:
        FileExistsError: something stands at `path`; it is still there.
        OSError: the folder cannot be written.
    """
    _put(Path(path), data, os.link)  # unlike renaming, linking never replaces


def _put(path: Path, data: bytes, place: Callable[[Path, Path], None]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with beside.open("xb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        place(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` to `path` at once, as UTF-8 with the line ends it has.

    Raises:
        OSError: the folder cannot be written; what stood at `path` is still there.
    """
    write_bytes(path, text.encode())


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Keep other processes, and threads, out of the block: the lock is the file at `path`, made as needed.

    Args:
        path: the lock's own file; the lock goes with the process, however that ends.
        wait: for whoever has it.

    Raises:
        BlockingIOError: somebody has it, and `wait` is False.
        OSError: the file cannot be written.
    """
    import fcntl  # not on Windows

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield


@contextmanager
def replace_folder(path: str | Path) -> Iterator[Path]:
    """A new folder to fill, which takes the place of `path` when the block ends well and vanishes when it raises.

    The old folder is moved aside, the new one moved in, then the old one removed: a reader may find no folder for an
    instant, but never a mixture of two.

    Raises:
        OSError: the parent folder cannot be written.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    fresh, old = scratch / "new", scratch / "old"
    fresh.mkdir()
    try:
        yield fresh
        if path.exists():
            path.rename(old)
        try:
            fresh.rename(path)
        except OSError:
            if old.exists():
                old.rename(path)
            raise
    finally:
        shutil.rmtree(scratch, ignore_errors=True)

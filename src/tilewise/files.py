"""Atomic writes of files and folders, checksums, and locks between processes.

A reader sees the old content or the new one.
"""

from __future__ import annotations

import ctypes
import errno
import hashlib
import json
import os
import shutil
import tempfile
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

from tilewise.errors import DataError

Plain: TypeAlias = Any  # a value without a common type, such as one of parsed JSON

_CHECKSUM = "sha256"


def write_bytes(path: str | Path, data: bytes) -> None:
    """Write `data` to `path` atomically: to a file beside it, then renamed. Missing folders are created.

    Raises:
        OSError: The folder cannot be written; the old file is unchanged.
    """
    _write_beside(Path(path), data, os.replace)


def create_bytes(path: str | Path, data: bytes) -> None:
    """Write `data` to a new file atomically. Of two concurrent calls one fails.

    Raises:
        FileExistsError: The file exists; it is unchanged.
        OSError: The folder cannot be written.
    """
    _write_beside(Path(path), data, os.link)  # unlike renaming, linking never replaces a file


def _write_beside(path: Path, data: bytes, move: Callable[[Path, Path], None]) -> None:
    with _beside(path, move) as file:
        file.write(data)


@contextmanager
def replacing(path: str | Path) -> Iterator[BinaryIO]:
    """Yield a file to write, which replaces `path` when the block ends, and is deleted if the block raises.

    Raises:
        OSError: The folder cannot be written; the old file is unchanged.
    """
    with _beside(Path(path), os.replace) as file:
        yield file


@contextmanager
def _beside(path: Path, move: Callable[[Path, Path], None]) -> Iterator[BinaryIO]:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{uuid.uuid4().hex}")
    try:
        with beside.open("xb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        move(beside, path)
    finally:
        beside.unlink(missing_ok=True)


def write_text(path: str | Path, text: str) -> None:
    """Write `text` to `path` atomically, as UTF-8 with unchanged line ends.

    Raises:
        OSError: The folder cannot be written; the old file is unchanged.
    """
    write_bytes(path, text.encode())


_encode_sorted = json.JSONEncoder(sort_keys=True).encode  # dumps() would make an encoder for each call


def digest_of(values: Mapping[str, object]) -> str:
    """Return the SHA-256 of plain data, in hexadecimal digits, whatever the order of its keys."""
    return hashlib.sha256(_encode_sorted(values).encode()).hexdigest()


def dump_checked(values: Mapping[str, object]) -> bytes:
    """Return plain data as JSON with a checksum of the rest; equal data gives equal bytes."""
    return (json.dumps({**values, _CHECKSUM: digest_of(values)}) + "\n").encode()


def load_checked(data: bytes) -> dict[str, Plain]:
    """Parse the output of :func:`dump_checked`, and return the data without its checksum.

    Raises:
        DataError: the checksum is wrong.
        ValueError, LookupError, TypeError, AttributeError, RecursionError: the bytes have another form.
    """
    values: dict[str, Plain] = json.loads(data)
    checksum = values.pop(_CHECKSUM)
    if checksum != digest_of(values):
        raise DataError("its checksum is wrong")
    return values


@contextmanager
def locked(path: Path, *, wait: bool = True) -> Iterator[None]:
    """Hold a lock for the duration of the block, against other processes and threads.

    Args:
        path: The lock file, created if necessary. The lock ends with the process, however that ends.
        wait: True to wait for the present holder, False to fail.

    Raises:
        BlockingIOError: The lock is held, and `wait` is False.
        OSError: The file cannot be written.
    """
    import fcntl  # not on Windows

    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        yield


@contextmanager
def replace_folder(path: str | Path) -> Iterator[Path]:
    """Yield an empty folder to fill. It replaces `path` when the block ends, and is deleted if the block raises.

    Both folders are exchanged in one step, then the old one is deleted. Where the system cannot exchange folders, the
    old one is moved aside first: a reader may find no folder for an instant, but never a mixture of both.

    Raises:
        OSError: The parent folder cannot be written.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    fresh, old = scratch / "new", scratch / "old"
    try:
        fresh.mkdir()
        yield fresh
        if path.exists() and _exchange(fresh, path):
            return
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


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two folders in one step; return False where the system or the file system cannot.

    Raises:
        OSError: The folders cannot be moved.
    """
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)  # Linux; Python has no function for it
    if rename is None:
        return False
    at_cwd, exchange = -100, 2
    if rename(at_cwd, os.fsencode(one), at_cwd, os.fsencode(other), exchange) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.ENOTSUP):
        return False
    raise OSError(number, os.strerror(number), str(other))

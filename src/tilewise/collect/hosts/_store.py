"""Storage that all hosts share: a folder of a network file system, or a bucket.

Only exclusive creation is asked of it beyond reading and writing: of several creators of a name, one succeeds. Folders
have that by hard links, object stores by conditional writes (If-None-Match). An outage of minutes is waited for.
"""

from __future__ import annotations

import shutil
import time
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Protocol, TypeVar

from tilewise.errors import ConfigError, MeasurementError
from tilewise.files import create_bytes, write_bytes

OUTAGE_S = 180.0  # of the storage that is waited for
_PAUSE_S = 1.0

T = TypeVar("T")


class Store(Protocol):
    """Objects by name; a name has parts separated by slashes."""

    def create(self, name: str, data: bytes) -> bool:
        """Create an object; return False if the name exists, whose object stays as it is."""

    def write(self, name: str, data: bytes) -> None:
        """Create or replace an object."""

    def read(self, name: str) -> bytes | None:
        """Return an object, or None if no object has this name."""

    def names(self, folder: str) -> list[str]:
        """Return the ascending names of the objects in a folder, without the folder."""

    def delete(self) -> None:
        """Delete all objects."""


def open_store(place: str, part: str) -> Store:
    """Return the part of a folder or bucket that belongs to one plan.

    Args:
        place: a folder, or the URL of a bucket or folder in it, such as ``s3://tilewise/runs``.
        part: name of the plan's part.

    Raises:
        ConfigError: fsspec does not know the URL's protocol, or the object store replaces objects that exist.
    """
    if "://" not in place:
        return _FolderStore(Path(place) / part)
    store = _ObjectStore(f"{place.rstrip('/')}/{part}")
    probe = f"probe-{uuid.uuid4().hex}"
    if not store.create(probe, b"1") or store.create(probe, b"2"):
        raise ConfigError(
            f"collect.store={place} must refuse to create an object that exists (If-None-Match), and does not; "
            "use another store, or a shared folder"
        )
    return store


class _FolderStore:
    """A folder that all hosts see under one path."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def create(self, name: str, data: bytes) -> bool:
        try:
            _patiently(lambda: create_bytes(self._folder / name, data))
        except FileExistsError:
            return False
        return True

    def write(self, name: str, data: bytes) -> None:
        _patiently(lambda: write_bytes(self._folder / name, data))

    def read(self, name: str) -> bytes | None:
        try:
            return _patiently((self._folder / name).read_bytes)
        except FileNotFoundError:
            return None

    def names(self, folder: str) -> list[str]:
        try:
            found = _patiently(lambda: [path.name for path in (self._folder / folder).iterdir()])
        except FileNotFoundError:
            return []
        return sorted(name for name in found if not name.startswith("."))

    def delete(self) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)


class _ObjectStore:
    """A bucket, by fsspec."""

    def __init__(self, url: str) -> None:
        import fsspec

        try:
            self._fs, self._path = fsspec.core.url_to_fs(url, use_listings_cache=False)
        except (ValueError, ImportError) as e:
            raise ConfigError(f"collect.store={url} cannot be used: {e}") from e

    def create(self, name: str, data: bytes) -> bool:
        try:
            _patiently(lambda: self._fs.pipe_file(f"{self._path}/{name}", data, mode="create"))
        except (FileExistsError, OSError) as e:
            if not isinstance(e, FileExistsError) and "PreconditionFailed" not in repr(e.__cause__ or e):
                raise
            return False
        return True

    def write(self, name: str, data: bytes) -> None:
        _patiently(lambda: self._fs.pipe_file(f"{self._path}/{name}", data))

    def read(self, name: str) -> bytes | None:
        try:
            found: bytes = _patiently(lambda: self._fs.cat_file(f"{self._path}/{name}"))
        except FileNotFoundError:
            return None
        return found

    def names(self, folder: str) -> list[str]:
        try:
            found = _patiently(lambda: self._fs.ls(f"{self._path}/{folder}", detail=False))
        except FileNotFoundError:
            return []
        return sorted(path.rpartition("/")[2] for path in found)

    def delete(self) -> None:
        _patiently(lambda: self._fs.rm(self._path, recursive=True))


def _patiently(call: Callable[[], T]) -> T:
    """Call, again and again while the storage is away.

    Raises:
        MeasurementError: it was away for longer than OUTAGE_S.
    """
    end = time.monotonic() + OUTAGE_S
    while True:
        try:
            return call()
        except (FileExistsError, FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError):
            raise
        except OSError as e:
            if "PreconditionFailed" in repr(e.__cause__ or e):
                raise
            if time.monotonic() > end:
                raise MeasurementError(f"the shared storage was away for {OUTAGE_S:g} s: {e}") from e
            time.sleep(_PAUSE_S)

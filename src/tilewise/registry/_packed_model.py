"""A model's files in one zip file, which the registry keeps beside them: each request costs a server some 50 ms."""

from __future__ import annotations

import io
import re
import zipfile
from collections.abc import Mapping

PACKED = "model.zip"  # in the model's folder of the registry

_NAME = re.compile(r"\w[\w.-]*", re.ASCII)
_MAX_FILES = 64  # a model has at most 13


def pack(files: Mapping[str, bytes]) -> bytes:
    """Return a model's files as one; the large ones are compressed already. Equal files give equal bytes."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_STORED) as archive:
        for name in sorted(files):
            archive.writestr(zipfile.ZipInfo(name), files[name])
    return packed.getvalue()


def unpack(packed: bytes) -> dict[str, bytes]:
    """Return the files of a packed model by name.

    Raises:
        ValueError: The bytes are damaged, or are not as :func:`pack` writes them.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(packed)) as archive:
            infos = archive.infolist()
            names = {info.filename for info in infos}
            if not 0 < len(infos) == len(names) <= _MAX_FILES or not all(map(_NAME.fullmatch, names)):
                raise ValueError(f"must have up to {_MAX_FILES} files, with names {_NAME.pattern}, got {sorted(names)}")
            if any(info.compress_type != zipfile.ZIP_STORED for info in infos):
                raise ValueError("must not be compressed")
            if sum(info.file_size for info in infos) > len(packed):
                raise ValueError("its files overlap")
            return {info.filename: archive.read(info) for info in infos}
    except (zipfile.BadZipFile, EOFError, NotImplementedError, RuntimeError) as e:  # the last for encrypted ones
        raise ValueError(f"no sound zip file: {e}") from e

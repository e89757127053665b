"""A cache of compiled forms of models, so that the next process does not compile again.

Tracing the formulas and reading a few megabytes of trees take most of the time of loading a model. The result is arrays
and a few numbers. They are stored as a digest and NumPy's ``.npz``, one file per content of a model and state of this
library's code. A file is verified before use: first its digest, because NumPy does not expect damage; then the model's
self-test is repeated with it. Pickles are not read.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
import zipfile
import zlib
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TypeAlias, cast

import numpy as np

import tilewise
from tilewise.core import compiled_core
from tilewise.files import write_bytes
from tilewise.model._ranker import CoreArguments, Ranker, RankerParts
from tilewise.model._trained_model import TrainedModel

MOST_KEPT = 32  # files; the least recently used are removed

_CODE = ("core", "features", "kernels", "model", "ops")  # packages that determine a compiled form
_SUFFIX, _DIGEST = ".form", 32  # bytes of SHA-256
_MAX_BYTES = 1 << 29  # of a file; 4,608 kernels and 2,000 trees take 100 MB
_LAYOUT = "layout"  # the array that holds everything except arrays, as JSON

# Arguments of the core, and their JSON, in which names stand for arrays and bytes.
_Argument: TypeAlias = (
    "np.ndarray | bytes | dict[str, _Argument] | list[_Argument] | tuple[_Argument, ...] | int | float | None"
)
_Layout: TypeAlias = "dict[str, _Layout] | list[_Layout] | str | int | float | None"

# Errors that a file with any content may cause; the model is then compiled from its own files.
_DAMAGE = (
    OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, EOFError, RecursionError, MemoryError,
    NotImplementedError, zipfile.BadZipFile, zlib.error,
)  # fmt: skip

_log = logging.getLogger(__name__)


def path(folder: Path, content_hash: str) -> Path:
    """Return the file in `folder` for the compiled form of a model with this content."""
    return folder / f"{content_hash[:32]}-{_code()}{_SUFFIX}"


def restore(model: TrainedModel, kept: Path) -> bool:
    """Give a new model its cached form. Return False if the file is missing or invalid."""
    core = compiled_core()
    if core is None:
        return False
    try:
        arrays = _read_arrays(kept)
        layout = json.loads(arrays.pop(_LAYOUT).tobytes())
        parts = RankerParts(cast(CoreArguments, _unflat(layout["arrays"], arrays)), layout["codes"], arrays["used"])
        ranker = Ranker.of(core, parts, model.target.op)
    except FileNotFoundError:
        return False
    except _DAMAGE as e:
        _log.info("%s is invalid and will be replaced: %s", kept, e)
        return False
    model.rank_by(ranker)
    with suppress(OSError):
        os.utime(kept)  # the most recently used
    return True


def _read_arrays(kept: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a file after checking its size and digest.

    Raises:
        OSError, ValueError, zipfile.BadZipFile: the file cannot be read, is too large, or is damaged.
    """
    if kept.stat().st_size > _MAX_BYTES:
        raise ValueError(f"larger than {_MAX_BYTES} bytes")
    data = kept.read_bytes()
    if hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
        raise ValueError("damaged")
    with zipfile.ZipFile(io.BytesIO(data[_DIGEST:])) as archive:
        if sum(member.file_size for member in archive.infolist()) > len(data):
            raise ValueError("compressed, but this library stores arrays uncompressed")
    with np.load(io.BytesIO(data[_DIGEST:]), allow_pickle=False) as file:
        return dict(file)


def keep(parts: RankerParts, kept: Path) -> None:
    """Store a compiled form. If the folder cannot be written, the next process compiles again."""
    arrays: dict[str, np.ndarray] = {"used": parts.used}
    layout = {"arrays": _flat(cast(_Argument, parts.arrays), arrays), "codes": parts.codes}
    arrays[_LAYOUT] = np.frombuffer(json.dumps(layout).encode(), dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    data = buffer.getvalue()
    try:
        write_bytes(kept, hashlib.sha256(data).digest() + data)
        _forget(kept.parent)
    except OSError as e:
        _log.info("%s cannot be written: %s", kept, e)


def _flat(value: _Argument, arrays: dict[str, np.ndarray]) -> _Layout:
    """Return `value` as JSON, with names in place of its arrays and bytes, which are added to `arrays`."""
    if isinstance(value, dict):
        return {name: _flat(part, arrays) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_flat(part, arrays) for part in value]
    if not isinstance(value, (np.ndarray, bytes)):
        return value
    name = f"array{len(arrays)}"
    arrays[name] = np.frombuffer(value, dtype=np.uint8) if isinstance(value, bytes) else value
    return f"{'bytes' if isinstance(value, bytes) else 'array'} {name}"


def _unflat(value: _Layout, arrays: dict[str, np.ndarray]) -> _Argument:
    """Invert :func:`_flat`, except that lists become tuples, which the core accepts as well."""
    if isinstance(value, dict):
        return {name: _unflat(part, arrays) for name, part in value.items()}
    if isinstance(value, list):
        return tuple(_unflat(part, arrays) for part in value)
    if not isinstance(value, str):
        return value
    kind, _, name = value.partition(" ")
    return arrays[name].tobytes() if kind == "bytes" else arrays[name]


@cache
def _code() -> str:
    """Return a digest of the sizes and times of this library's files, by which Python detects stale bytecode too."""
    digest = hashlib.sha256(f"{tilewise.__version__} {np.__version__}".encode())
    root = Path(tilewise.__file__).parent
    for package in _CODE:
        for file in sorted((root / package).rglob("*")):
            if file.suffix in (".py", ".so", ".pyd"):
                stat = file.stat()
                digest.update(f"{file.relative_to(root)} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _forget(folder: Path) -> None:
    """Remove the least recently used files."""
    used = sorted(folder.glob(f"*{_SUFFIX}"), key=lambda f: f.stat().st_mtime, reverse=True)
    for file in used[MOST_KEPT:]:
        file.unlink(missing_ok=True)

"""A cache of compiled forms of models, so that the next process does not compile again.

Tracing the formulas and reading a few megabytes of trees take most of the time of loading a model. The result is arrays
and a few numbers. A file, one per content of a model and state of this library's code, has a digest and the arrays one
after the other (:func:`packed`); the 150 members of an ``.npz`` would take ten times as long to read. A file is checked
before use: first its digest, then the model's self-test is repeated with it. Pickles are not read.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections.abc import Mapping
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
_ALIGNMENT = 16  # bytes, of each array in a file
_LAYOUT = "layout"  # the array that holds everything except arrays, as JSON

# Arguments of the core, and their JSON, in which names stand for arrays and bytes.
_Argument: TypeAlias = (
    "np.ndarray | bytes | dict[str, _Argument] | list[_Argument] | tuple[_Argument, ...] | int | float | None"
)
_Layout: TypeAlias = "dict[str, _Layout] | list[_Layout] | str | int | float | None"

# Errors that a file with any content may cause; the model is then compiled from its own files.
_DAMAGE = (
    OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, EOFError, RecursionError, MemoryError,
    NotImplementedError,
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
        OSError, ValueError, LookupError, TypeError: the file cannot be read, is too large, or is damaged.
    """
    if kept.stat().st_size > _MAX_BYTES:
        raise ValueError(f"larger than {_MAX_BYTES} bytes")
    data = memoryview(kept.read_bytes())
    if hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
        raise ValueError("damaged")
    return unpacked(data[_DIGEST:])


def packed(arrays: Mapping[str, np.ndarray]) -> bytes:
    """Return arrays as bytes: the length of a header and the header, JSON of types and shapes; then each array."""
    header = json.dumps({name: (array.dtype.str, array.shape) for name, array in arrays.items()}).encode()
    blocks = [len(header).to_bytes(_ALIGNMENT, "little"), header, *(array.tobytes() for array in arrays.values())]
    return b"".join(block + bytes(-len(block) % _ALIGNMENT) for block in blocks)


def unpacked(data: memoryview) -> dict[str, np.ndarray]:
    """Return the arrays of :func:`packed`, which read the bytes in place.

    Raises:
        ValueError, LookupError, TypeError, AttributeError: they do not have that form.
    """
    arrays, length = {}, int.from_bytes(data[:_ALIGNMENT], "little")
    at = _ALIGNMENT + length
    for name, (kind, shape) in json.loads(bytes(data[_ALIGNMENT:at])).items():
        at += -at % _ALIGNMENT
        dtype = np.dtype(kind)
        if dtype.kind not in "biuf" or min(shape, default=0) < 0:
            raise ValueError(f"{name}: must be numbers, got {kind} of shape {shape}")
        arrays[name] = np.frombuffer(data, dtype, math.prod(shape), at).reshape(shape)
        at += arrays[name].nbytes
    return arrays


def keep(parts: RankerParts, kept: Path) -> None:
    """Store a compiled form. If the folder cannot be written, the next process compiles again."""
    arrays: dict[str, np.ndarray] = {"used": parts.used}
    layout = {"arrays": _flat(cast(_Argument, parts.arrays), arrays), "codes": parts.codes}
    arrays[_LAYOUT] = np.frombuffer(json.dumps(layout).encode(), dtype=np.uint8)
    data = packed(arrays)
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

"""The compiled form of a model, kept beside other caches so that the next process need not make it again.

Tracing the formulas, reading a few megabytes of trees and the estimate is most of what loading a model takes. What
comes of it is arrays and a few numbers: one file for each content and each state of this library's code, a digest and
NumPy's ``.npz``. Such a file is never believed: the digest is checked first, as NumPy does not expect damage, pickles
are not read, and the model's self-test is repeated with it.
"""

from __future__ import annotations

import hashlib
import io
import json
import logging
import os
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import tilewise
from tilewise.core import compiled_core
from tilewise.files import write_bytes
from tilewise.model.ranker import Parts, Ranker
from tilewise.model.trained import TrainedModel

MOST_KEPT = 32  # files; those not used for longest go

_CODE = ("core", "features", "kernels", "model", "ops")  # packages that a compiled form follows from
_SUFFIX, _DIGEST = ".form", 32  # bytes of SHA-256
_LAYOUT = "layout"  # the array that holds everything but arrays, as JSON

_log = logging.getLogger(__name__)


def path(folder: Path, content_hash: str) -> Path:
    """Where the compiled form of a model of this content is kept in `folder`."""
    return folder / f"{content_hash[:32]}-{_code()}{_SUFFIX}"


def restore(model: TrainedModel, kept: Path) -> bool:
    """Give a model, just made, the form that was kept of it; False where there is none, or none that is sound."""
    core = compiled_core()
    if core is None:
        return False
    try:
        data = kept.read_bytes()
        if hashlib.sha256(data[_DIGEST:]).digest() != data[:_DIGEST]:
            raise ValueError("damaged")
        with np.load(io.BytesIO(data[_DIGEST:]), allow_pickle=False) as file:
            arrays = dict(file)
        layout = json.loads(arrays.pop(_LAYOUT).tobytes())
        parts = Parts(_unflat(layout["arrays"], arrays), layout["codes"], arrays["used"])
        ranker = Ranker.of(core, parts, model.target.op)
    except FileNotFoundError:
        return False
    except (OSError, ValueError, KeyError, TypeError) as e:
        _log.info("%s is made anew: %s", kept, e)
        return False
    model.rank_by(ranker)
    with suppress(OSError):
        os.utime(kept)  # used last
    return True


def keep(parts: Parts, kept: Path) -> None:
    """Keep what a model was compiled to; a folder that cannot be written costs time, nothing else."""
    arrays: dict[str, np.ndarray] = {"used": parts.used}
    layout = {"arrays": _flat(parts.arrays, arrays), "codes": parts.codes}
    arrays[_LAYOUT] = np.frombuffer(json.dumps(layout).encode(), dtype=np.uint8)
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)  # type: ignore[arg-type]
    data = buffer.getvalue()
    try:
        write_bytes(kept, hashlib.sha256(data).digest() + data)
        _forget(kept.parent)
    except OSError as e:
        _log.info("%s cannot be kept: %s", kept, e)


def _flat(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """`value` as JSON, its arrays and bytes put into `arrays` under names that stand in their place."""
    if isinstance(value, dict):
        return {name: _flat(part, arrays) for name, part in value.items()}
    if isinstance(value, (list, tuple)):
        return [_flat(part, arrays) for part in value]
    if not isinstance(value, (np.ndarray, bytes)):
        return value
    name = f"array{len(arrays)}"
    arrays[name] = np.frombuffer(value, dtype=np.uint8) if isinstance(value, bytes) else value
    return f"{'bytes' if isinstance(value, bytes) else 'array'} {name}"


def _unflat(value: Any, arrays: dict[str, np.ndarray]) -> Any:
    """The inverse of :func:`_flat`, with tuples for lists, which the core takes alike."""
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
    """A digest that changes with this library's code, told as Python tells whether its bytecode is stale."""
    digest = hashlib.sha256(f"{tilewise.__version__} {np.__version__}".encode())
    root = Path(tilewise.__file__).parent
    for package in _CODE:
        for file in sorted((root / package).rglob("*")):
            if file.suffix in (".py", ".so", ".pyd"):
                stat = file.stat()
                digest.update(f"{file.relative_to(root)} {stat.st_size} {stat.st_mtime_ns}\n".encode())
    return digest.hexdigest()[:16]


def _forget(folder: Path) -> None:
    """Remove what was not used for longest."""
    used = sorted(folder.glob(f"*{_SUFFIX}"), key=lambda f: f.stat().st_mtime, reverse=True)
    for file in used[MOST_KEPT:]:
        file.unlink(missing_ok=True)

"""The files of a model's folder: their names, how large they may be, and how their bytes are packed."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tilewise.errors import ArtefactError
from tilewise.model.labels import EXTRA_LABELS

SCORES, SCALE = "model_tflops.lgbm.gz", "model_scale.lgbm.gz"
ESTIMATE, TRUST = "estimate.json.gz", "trust.json.gz"
SPEC, POOL, SELFTEST, MANIFEST = "feature_spec.json", "pool.json", "selftest.json", "train_manifest.json"
METRICS, IMPORTANCES = "cv_metrics_tflops.json", "feature_importances_tflops.json"
EXTRAS = {label: f"model_{label}.lgbm.gz" for label in EXTRA_LABELS}
REQUIRED = (SCORES, SPEC, POOL, SELFTEST, MANIFEST, METRICS, IMPORTANCES)
OPTIONAL = (SCALE, ESTIMATE, TRUST, *EXTRAS.values())

MAX_FILE_BYTES = 128 << 20  # what is read of one file, packed
MAX_MODEL_BYTES = 256 << 20  # what it may unpack to (2,000 trees of 255 leaves take 80 MiB): no gzip bomb fills memory


def read_files(folder: str | Path) -> dict[str, bytes]:
    """The files of a model, by name.

    Raises:
        ArtefactError: the folder or a file of it is missing, unreadable or too large.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ArtefactError(f"{folder}: no such folder; `tilewise train` writes one, or give another model_dir")
    files = {}
    for name in (*REQUIRED, *OPTIONAL):
        path = folder / name
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise ArtefactError(f"{path}: larger than {MAX_FILE_BYTES} bytes, this is no model of this library")
            files[name] = path.read_bytes()
        except FileNotFoundError:
            if name in REQUIRED:
                raise ArtefactError(
                    f"{path}: missing; the folder holds no whole model, train or fetch it again"
                ) from None
        except OSError as e:
            raise ArtefactError(f"{path}: cannot be read: {e.strerror}") from e
    return files


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a model's files into a folder that is there.

    Raises:
        OSError: it cannot be written.
    """
    for name, data in files.items():
        (folder / name).write_bytes(data)


def content_hash(files: Mapping[str, bytes]) -> str:
    """Identity of a model: SHA-256 over each file's name, length and bytes, sorted by name."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\n{len(files[name])}\n".encode() + files[name])
    return digest.hexdigest()


def pack_json(value: Any) -> bytes:
    """Plain data; equal data gives equal bytes."""
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def pack_text(text: str) -> bytes:
    """A text, compressed; equal texts give equal bytes."""
    return gzip.compress(text.encode(), mtime=0)


def unpack_text(data: bytes) -> str:
    """Unpack in memory, no further than :data:`MAX_MODEL_BYTES`.

    Raises:
        ArtefactError: the data is no gzip, cut off, corrupt, too large, or no text.
    """
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # gzip, with its checksum
    try:
        text = unpacker.decompress(data, MAX_MODEL_BYTES)
        if unpacker.unconsumed_tail:
            raise ArtefactError(f"unpacks to more than {MAX_MODEL_BYTES} bytes, this is no model of this library")
        if not unpacker.eof:
            raise ArtefactError("cut off; fetch it again")
        return text.decode()
    except (zlib.error, UnicodeDecodeError) as e:
        raise ArtefactError(f"damaged: {e}; fetch it again") from e


def read_json(files: Mapping[str, bytes], name: str, where: str) -> dict[str, Any]:
    """The JSON object in one of `files`.

    Raises:
        ArtefactError: it is no JSON, or no object; the message names the folder `where` and the file.
    """
    try:
        value = json.loads(files[name])
    except (ValueError, RecursionError) as e:
        raise ArtefactError(f"{where}: {name} is no JSON: {e}") from e
    if not isinstance(value, dict):
        raise ArtefactError(f"{where}: {name} must be a JSON object, got {type(value).__name__}")
    return value

"""The files of a model's folder: their names, their size limits, and the packing of their bytes."""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeAlias

from tilewise.errors import ArtefactError, ConfigError
from tilewise.model import _schema as schema
from tilewise.model._label_names import EXTRA_LABELS
from tilewise.ops import OpDefinition

JsonObject: TypeAlias = Mapping[str, Any]  # parsed JSON, whose values have any type

SCORES, SCALE = "model_tflops.lgbm.gz", "model_scale.lgbm.gz"
COST_MODEL, CALIBRATION = "estimate.json.gz", "trust.json.gz"  # the cost model; the calibration of the confidence
SPEC, POOL, SELFTEST, MANIFEST = "feature_spec.json", "pool.json", "selftest.json", "train_manifest.json"
DEFINITION = "definition.json"  # of ops of the user's own
METRICS, IMPORTANCES = "cv_metrics_tflops.json", "feature_importances_tflops.json"
EXTRAS = {label: f"model_{label}.lgbm.gz" for label in EXTRA_LABELS}
REQUIRED = (SCORES, SPEC, POOL, SELFTEST, MANIFEST, METRICS, IMPORTANCES)
OPTIONAL = (DEFINITION, SCALE, COST_MODEL, CALIBRATION, *EXTRAS.values())

_RULES = {
    SPEC: schema.SPEC_RULE,
    POOL: schema.POOL_RULE,
    SELFTEST: schema.SELFTEST_RULE,
    MANIFEST: schema.MANIFEST_RULE,
    METRICS: schema.METRICS_RULE,
    IMPORTANCES: schema.IMPORTANCES_RULE,
    DEFINITION: schema.DEFINITION_RULE,
    COST_MODEL: schema.COST_MODEL_RULE,
    CALIBRATION: schema.CALIBRATION_RULE,
}

# Limits of files, against texts that take gigabytes when they are parsed.
MAX_FILE_BYTES = 64 << 20  # of a packed file
MAX_JSON_BYTES = {SPEC: 4 << 20, POOL: 16 << 20, SELFTEST: 16 << 20, MANIFEST: 4 << 20, METRICS: 4 << 20,
                  IMPORTANCES: 4 << 20, DEFINITION: 1 << 20}  # 4,608 kernels take 2 MB  # fmt: skip
MAX_MODEL_BYTES = 256 << 20  # of an unpacked file (2,000 trees of 255 leaves: 80 MiB, cost model of 4,608 kernels: 133)
MAX_CALIBRATION_BYTES = 16 << 20  # of an unpacked calibration (2,500 problems take 1.4 MB)
MAX_RATIO, MIN_LIMIT = 48, 4 << 20  # of unpacked to packed bytes (files that tilewise writes reach 41), from a size on


def read_files(folder: str | Path) -> dict[str, bytes]:
    """Read the files of a model, by name. Other files of the folder are ignored.

    If the folder is replaced meanwhile (:func:`tilewise.files.replace_folder`), it is read once more, as the files read
    until then may be those of two models.

    Raises:
        ArtefactError: the folder or a required file is missing, or a file is unreadable or too large.
    """
    folder = Path(folder)
    if not folder.is_dir():
        raise ArtefactError(f"{folder}: no such folder; `tilewise train` writes one, or give another model_dir")
    before = _identity(folder)
    try:
        files = _read_each(folder)
        if _identity(folder) == before:
            return files
    except ArtefactError:
        if _identity(folder) == before:
            raise
    return _read_each(folder)


def _identity(folder: Path) -> tuple[int, ...] | None:
    """Return what tells a folder from another one of the same name; None for a missing one."""
    try:
        found = folder.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino, found.st_ctime_ns  # a number may be used again, so the time counts too


def _read_each(folder: Path) -> dict[str, bytes]:
    files = {}
    for name in (*REQUIRED, *OPTIONAL):
        path = folder / name
        most = min(MAX_JSON_BYTES.get(name, MAX_FILE_BYTES), MAX_FILE_BYTES)
        try:
            with path.open("rb") as file:
                data = file.read(min(most, path.stat().st_size) + 1)
            if len(data) > most:
                raise ArtefactError(f"{path}: larger than {most} bytes, so it was not written by tilewise")
            files[name] = data
        except FileNotFoundError:
            if name in REQUIRED:
                raise ArtefactError(f"{path}: missing, the model is incomplete; train or fetch it again") from None
        except OSError as e:
            raise ArtefactError(f"{path}: cannot be read: {e.strerror}") from e
    return files


def write_files(folder: Path, files: Mapping[str, bytes]) -> None:
    """Write a model's files into an existing folder.

    Raises:
        OSError: the folder cannot be written.
    """
    for name, data in files.items():
        (folder / name).write_bytes(data)


def content_hash(files: Mapping[str, bytes]) -> str:
    """Return the identity of a model: SHA-256 over each file's name, length and bytes, sorted by name."""
    digest = hashlib.sha256()
    for name in sorted(files):
        digest.update(f"{name}\n{len(files[name])}\n".encode() + files[name])
    return digest.hexdigest()


def folder_hash(folder: str | Path) -> str:
    """Return the identity of the model in a folder, without parsing any file.

    Raises:
        ArtefactError: as for :func:`read_files`.
    """
    return content_hash(read_files(folder))


def pack_json(value: JsonObject) -> bytes:
    """Return JSON; equal values give equal bytes."""
    return (json.dumps(value, indent=1, sort_keys=True) + "\n").encode()


def pack_definition(definition: OpDefinition) -> bytes:
    """Return the file of a definition, whose columns stay in order."""
    return (json.dumps(definition.to_dict() | {"digest": definition.digest}, indent=1) + "\n").encode()


def read_definition_file(files: Mapping[str, bytes], where: str) -> OpDefinition | None:
    """Return the definition that came with a model; None for a model of a built-in op.

    Raises:
        ArtefactError: the file is no definition, or its digest is another one's.
    """
    if DEFINITION not in files:
        return None
    values = dict(read_json(files, DEFINITION, where))
    digest = values.pop("digest")
    try:
        definition = OpDefinition.from_dict(values)
    except ConfigError as e:
        raise ArtefactError(f"{where}: {DEFINITION}: {e}") from e
    if definition.digest != digest:
        raise ArtefactError(
            f"{where}: {DEFINITION}: digest must be {definition.digest}, got {digest!r:.80}; fetch the model again"
        )
    return definition


def pack_text(text: str) -> bytes:
    """Compress a text; equal texts give equal bytes."""
    return gzip.compress(text.encode(), mtime=0)


def unpack_text(data: bytes, most: int | None = None) -> str:
    """Unpack a text in memory.

    Args:
        data: a text that :func:`pack_text` packed.
        most: limit of the unpacked bytes; None for :data:`MAX_MODEL_BYTES`. Texts of more than :data:`MIN_LIMIT` bytes
            may also have at most :data:`MAX_RATIO` times the packed bytes.

    Raises:
        ArtefactError: the data is not gzip, cut off, corrupt, too large, or not a text.
    """
    limit = min(MAX_MODEL_BYTES if most is None else most, max(MIN_LIMIT, MAX_RATIO * len(data)))
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)  # gzip, with its checksum
    try:
        text = unpacker.decompress(data, limit + 1)
        if len(text) > limit:
            raise ArtefactError(f"unpacks to more than {limit} bytes, so it was not written by tilewise")
        if not unpacker.eof:
            raise ArtefactError("cut off; fetch it again")
        return text.decode()
    except (zlib.error, UnicodeDecodeError) as e:
        raise ArtefactError(f"damaged: {e}; fetch it again") from e


def read_json(files: Mapping[str, bytes], name: str, where: str) -> JsonObject:
    """Parse the JSON object in one of `files`.

    Raises:
        ArtefactError: the file is not a JSON object, or a field breaks its rule; the message names the folder `where`
            and the file.
    """
    try:
        value = json.loads(files[name])
    except (ValueError, RecursionError) as e:
        raise ArtefactError(f"{where}: {name} is not valid JSON: {e}") from e
    if not isinstance(value, dict):
        raise ArtefactError(f"{where}: {name} must be a JSON object, got {type(value).__name__}")
    check_fields(name, value, f"{where}: {name}: ")
    return value


def check_fields(name: str, values: JsonObject, prefix: str = "") -> None:
    """Check the type and range of every field of one of a model's JSON files.

    Raises:
        ArtefactError: a field is missing or breaks its rule; the message, after `prefix`, names it.
    """
    fault = schema.first_fault(values, _RULES[name])
    if fault is not None:
        raise ArtefactError(f"{prefix}{fault}; fetch the model again, or train it again")

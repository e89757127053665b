"""The manifest of an instance library: the libraries of a folder in one file, for a profiler and for measuring.

``{"version": 1, "op", "variant", "dtype", "arch", "libraries": [{"id", "kernel", "instance", "file", "sha256"}, ...]}``
holds the files' names in the manifest's folder. Convolutions are listed in CK's own format beside it, see
:func:`link_manifest`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Self

from tilewise.errors import ConfigError, KernelError, LibraryError
from tilewise.files import write_text
from tilewise.kernels.ck._dispatcher_json import dispatcher_json_text
from tilewise.kernels.ck._instance import AnyInstance, parse_instance_string

VERSION = 1
MANIFEST, INSTANCES = "manifest.json", "instances.json"


def sha256_of(file: Path) -> str:
    """Return the digest of a file's contents."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


@dataclass(frozen=True)
class LibraryRecord:
    """The description of a library, which lies beside it as ``NAME.json``."""

    kernel: str
    instance: str
    arch: str
    sha256: str
    compiler: str

    def dumps(self) -> str:
        """Return the record as JSON text."""
        return json.dumps(asdict(self), indent=1) + "\n"

    @classmethod
    def loads(cls, text: str, where: Path) -> Self:
        """Read a record.

        Raises:
            LibraryError: the text is not a record; the message names `where`.
        """
        try:
            values = json.loads(text)
            if not isinstance(values, dict) or not all(isinstance(v, str) for v in values.values()):
                raise TypeError("expected an object of texts")
            return cls(**values)
        except (ValueError, TypeError) as e:
            raise LibraryError(f"{where} is not the record of a library: {e}; build the library again") from e


@dataclass(frozen=True)
class Manifest:
    """A manifest.

    Attributes:
        path: its file.
        libraries: the library of each kernel, by the kernel's name.
    """

    path: Path
    libraries: Mapping[str, Path]


def link_manifest(folder: Path) -> Manifest:
    """Write the manifest of the libraries in a folder, and for convolutions the dispatcher's JSON ``instances.json``.

    Raises:
        LibraryError: the folder has no library, a library has no record or is another than its record describes, or
            libraries differ in op, variant, type or arch.
    """
    files = sorted(folder.glob("*.so"))
    if not files:
        raise LibraryError(f"{folder} has no *.so file; build libraries into it first, or give input=FOLDER")
    records = [_record_of(file) for file in files]
    instances = [_instance_of(record, file) for record, file in zip(records, files, strict=True)]
    header = _header(records, instances, folder)
    rows = [
        {"id": i, "kernel": r.kernel, "instance": r.instance, "file": file.name, "sha256": r.sha256}
        for i, (r, file) in enumerate(zip(records, files, strict=True))
    ]
    path = folder / MANIFEST
    write_text(path, json.dumps({"version": VERSION, **header, "libraries": rows}, indent=1) + "\n")
    if header["op"] == "grouped_conv":
        write_text(folder / INSTANCES, dispatcher_json_text(instances))
    return Manifest(path, {r.kernel: file for r, file in zip(records, files, strict=True)})


def read_manifest(path: Path) -> tuple[Path, ...]:
    """Return the libraries of a manifest, each checked against its digest.

    Raises:
        ConfigError: the file is not a manifest, or a library is missing or another than it describes.
    """
    try:
        values = json.loads(path.read_text())
        if values["version"] != VERSION:
            raise ValueError(f"version must be {VERSION}, got {values['version']!r:.60}")
        rows = [(str(row["file"]), str(row["sha256"])) for row in values["libraries"]]
    except (OSError, ValueError, KeyError, TypeError) as e:
        raise ConfigError(f"{path} is not the manifest of an instance library: {e}") from e
    for name, digest in rows:
        if Path(name).name != name:
            raise ConfigError(f"{path}: libraries lie beside their manifest, got {name[:200]!r}")
        file = path.with_name(name)
        if not file.is_file() or sha256_of(file) != digest:
            raise ConfigError(f"{file} is missing, or is not the library of {path.name}; link the folder again")
    return tuple(path.with_name(name) for name, _ in rows)


def _record_of(file: Path) -> LibraryRecord:
    beside = file.with_suffix(".json")
    try:
        record = LibraryRecord.loads(beside.read_text(), beside)
    except OSError as e:
        raise LibraryError(f"{file} has no record {beside.name} beside it; build it with `tilewise ck build`") from e
    if sha256_of(file) != record.sha256:
        raise LibraryError(f"{file} is not the library that {beside.name} describes; build it again")
    return record


def _instance_of(record: LibraryRecord, file: Path) -> AnyInstance:
    try:
        return parse_instance_string(record.instance)
    except KernelError as e:
        raise LibraryError(f"{file.with_suffix('.json')}: {e}") from e


def _header(records: Sequence[LibraryRecord], instances: Sequence[AnyInstance], folder: Path) -> dict[str, object]:
    headers = {(i.fields["op"], i.fields["variant"], i.dtype, r.arch) for r, i in zip(records, instances, strict=True)}
    if len(headers) > 1:
        found = ", ".join(sorted("_".join(map(str, h)) for h in headers))
        raise LibraryError(f"{folder}: an instance library is of one target, got {found}; use a folder for each")
    return dict(zip(("op", "variant", "dtype", "arch"), headers.pop(), strict=True))

"""Packages of compiled Triton programs: a zip file whose manifest says for whom it is, and what each file must be.

Triton finds a program in its cache by a key over the kernel's source, the options, and Triton itself. A package is
therefore of use only to an installation with the same sources and the same Triton; its manifest states both, and
installing it checks them. The manifest also lists each file with size and digest, and nothing else is read. Digests
show damage, not who made a package: its programs run on the GPU, so take packages from sources that you trust.
"""

from __future__ import annotations

import hashlib
import json
import re
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tilewise.errors import DataError, one_line
from tilewise.kernels import triton as kernel_sources

FORMAT = 1
MANIFEST = "manifest.json"
_KEY = re.compile(r"[0-9a-f]{64}")
_FILE = re.compile(r"[A-Za-z0-9_]{1,150}\.(json|cubin)")
_MAX_MANIFEST = 64 << 20
_MAX_FILE = 64 << 20
_MAX_TOTAL = 8 << 30


@dataclass(frozen=True)
class Origin:
    """The circumstances in which programs were compiled; programs are of use where they are the same.

    Attributes:
        arch: name of the arch.
        triton: version of Triton.
        compiler: digest of Triton's sources, its assembler and its settings.
        sources: digest of the kernels' sources.
    """

    arch: str
    triton: str
    compiler: str
    sources: str

    @classmethod
    def here(cls, arch: str) -> Origin:
        """Return the circumstances of this installation."""
        import triton
        from triton.compiler.compiler import get_cache_invalidating_env_vars, make_backend
        from triton.runtime.cache import triton_key

        from tilewise.kernels.triton.programs import cuda_target

        settings = sorted(get_cache_invalidating_env_vars().items())
        compiler = f"{triton_key()}-{make_backend(cuda_target(arch)).hash()}-{settings}"
        return cls(arch, triton.__version__, hashlib.sha256(compiler.encode()).hexdigest(), _digest_of_sources())


@dataclass(frozen=True)
class Package:
    """The content of a package.

    Attributes:
        target: name of the target.
        origin: the circumstances of the compilation.
        programs: files by name for each program, by Triton's key.
    """

    target: str
    origin: Origin
    programs: Mapping[str, Mapping[str, bytes]]


def cached_files(key: str, name: str) -> dict[str, bytes]:
    """Return the files that Triton's cache has of a program: its binary and its description.

    Raises:
        DataError: the cache lacks one of them.
    """
    from triton.runtime.cache import get_cache_manager

    group = get_cache_manager(key).get_group(f"{name}.json") or {}
    files = {file: Path(path).read_bytes() for file, path in group.items() if _FILE.fullmatch(file)}
    if len(files) != 2:
        raise DataError(f"Triton's cache lost the program {name} ({key[:12]}) meanwhile; compile again")
    return files


def write_package(path: Path, package: Package) -> None:
    """Write a package; equal contents give equal files."""
    listed = {
        key: {name: {"size": len(data), "sha256": hashlib.sha256(data).hexdigest()} for name, data in files.items()}
        for key, files in sorted(package.programs.items())
    }
    document = {"format": FORMAT, "target": package.target, "origin": asdict(package.origin), "programs": listed}
    beside = path.with_name(f".{path.name}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with zipfile.ZipFile(beside, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(zipfile.ZipInfo(MANIFEST), json.dumps(document, indent=1))
            for key, files in sorted(package.programs.items()):
                for name, data in sorted(files.items()):
                    archive.writestr(zipfile.ZipInfo(f"{key}/{name}"), data, zipfile.ZIP_DEFLATED)
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def read_package(path: Path) -> Package:
    """Read a package, and check every name, size and digest.

    Raises:
        DataError: the file is no package, or is damaged; names the fault.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            infos = {info.filename: info for info in archive.infolist()}
            if len(infos) != len(archive.infolist()):
                raise DataError(f"{path}: a name stands twice in it; it is not a package of programs")
            read = _reader(archive, infos)
            document = json.loads(read(MANIFEST, _MAX_MANIFEST))
            listed, origin = _checked_manifest(document)
            names = {MANIFEST, *(f"{key}/{name}" for key, files in listed.items() for name in files)}
            if names != set(infos):
                strange = sorted(names ^ set(infos))[0]
                raise DataError(f"{strange[:100]!r} is listed in the manifest or contained, but not both")
            programs = {
                key: {name: _checked_file(read, f"{key}/{name}", rule) for name, rule in files.items()}
                for key, files in listed.items()
            }
        return Package(str(document["target"]), origin, programs)
    except (zipfile.BadZipFile, KeyError, TypeError, ValueError, AttributeError, EOFError, NotImplementedError) as e:
        raise DataError(f"{path}: not a package of programs: {one_line(e)}") from e
    except DataError as e:
        raise DataError(f"{path}: {e}") from e


def install_package(package: Package) -> int:
    """Put the programs into Triton's cache, and return the number of those that it lacked.

    Raises:
        DataError: the programs were compiled for other sources, or by another Triton.
    """
    from triton.runtime.cache import get_cache_manager

    here = asdict(Origin.here(package.origin.arch))
    for name, value in asdict(package.origin).items():
        if value != here[name]:
            raise DataError(
                f"{name} must be {here[name][:12]}, as installed here, but the package has {value[:12]}; Triton would "
                "not find its programs: compile with the same versions of tilewise and Triton"
            )
    added = 0
    for key, files in package.programs.items():
        manager = get_cache_manager(key)
        description = next(name for name in files if name.endswith(".json"))
        if manager.get_group(description) is None:
            manager.put_group(description, {name: manager.put(data, name) for name, data in files.items()})
            added += 1
    return added


def _reader(archive: zipfile.ZipFile, infos: Mapping[str, zipfile.ZipInfo]) -> Callable[[str, int], bytes]:
    """Return a function that reads a file of the archive, of at most so many bytes."""

    def read(name: str, size: int) -> bytes:
        with archive.open(infos[name]) as file:
            data = file.read(size + 1)
        if len(data) > size:
            raise DataError(f"{name[:100]!r} has more than {size} bytes")
        return data

    return read


def _checked_manifest(document: Any) -> tuple[dict[str, dict[str, Any]], Origin]:
    if document["format"] != FORMAT:
        raise DataError(f"format must be {FORMAT}, got {document['format']!r}; use the version that wrote it")
    origin = Origin(**{str(name): str(value) for name, value in document["origin"].items()})
    if not re.fullmatch(r"sm\d{2,3}", origin.arch):
        raise DataError(f"arch must be one of NVIDIA's such as sm90, got {origin.arch[:50]!r}")
    total = 0
    for key, files in document["programs"].items():
        kinds = sorted(name.rpartition(".")[2] for name in files)
        stems = {name.rpartition(".")[0] for name in files}
        if not _KEY.fullmatch(key) or not all(map(_FILE.fullmatch, files)) or kinds != ["cubin", "json"]:
            raise DataError(
                f"{key[:100]!r} must be a key of Triton's with a binary and a description, got {list(files)}"
            )
        if len(stems) != 1:
            raise DataError(f"{key} must have files of one program, got {sorted(stems)}")
        total += sum(int(rule["size"]) for rule in files.values())
    if total > _MAX_TOTAL:
        raise DataError(f"the programs must have at most {_MAX_TOTAL} bytes in all, got {total}")
    return document["programs"], origin


def _checked_file(read: Callable[[str, int], bytes], name: str, rule: Mapping[str, Any]) -> bytes:
    size = int(rule["size"])
    if not 0 < size <= _MAX_FILE:
        raise DataError(f"{name} must have between 1 and {_MAX_FILE} bytes, got {size}")
    data = read(name, size)
    if len(data) != size or hashlib.sha256(data).hexdigest() != rule["sha256"]:
        raise DataError(f"{name} is damaged: size or digest differ from the manifest; copy the package again")
    if name.endswith(".json") and json.loads(data)["hash"] != name.partition("/")[0]:
        raise DataError(f"{name} describes another program")
    return data


def _digest_of_sources() -> str:
    """Return the digest of the kernels' sources; Triton's key covers comments and line numbers, so bytes count."""
    root = Path(kernel_sources.__file__).parent
    digest = hashlib.sha256()
    for file in sorted(root.rglob("*.py")):
        digest.update(f"{file.relative_to(root).as_posix()}\n".encode() + file.read_bytes())
    return digest.hexdigest()

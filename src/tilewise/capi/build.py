"""Compiles the C library with the system's compiler, once for each state of the sources."""

from __future__ import annotations

import hashlib
import os
import shlex
import subprocess
import tempfile
from collections.abc import Sequence
from pathlib import Path

from tilewise.errors import ConfigError

_HERE = Path(__file__).parent
_CORE = _HERE.parent / "core"
INCLUDE = _HERE / "include"
SOURCES = (
    *(_HERE / f"{name}.c" for name in ("dispatcher", "file", "model", "problem", "reference")),
    *(
        _CORE / f"{name}.c"
        for name in ("cuts", "estimate", "forest", "program", "rank", "ranker", "room", "scores", "search", "walk")
    ),
)
# -ffp-contract=off: what is computed must not depend on whether the processor can multiply and add at once
FLAGS = (
    "-std=gnu11",
    "-O3",
    "-fPIC",
    "-ffp-contract=off",
    "-fno-math-errno",
    "-fno-trapping-math",
    "-fvisibility=hidden",
)
LIBRARIES = ("-lm", "-pthread")


def build() -> Path:
    """``libtilewise.so``, compiled now if these sources were not yet.

    It is kept under ``TILEWISE_CAPI_CACHE``, by default ``~/.cache/tilewise/capi``; ``CC`` chooses the compiler.

    Raises:
        ConfigError: there is no compiler, or it fails; the message holds its last words.
        OSError: the folder cannot be written.
    """
    return _compiled("libtilewise.so", [*FLAGS, "-shared", *map(str, SOURCES), *LIBRARIES])


def build_helper() -> Path:
    """The command ``gpu_helper``, likewise; it finds the library where :func:`build` left it."""
    library = build()
    linked = [str(library), f"-Wl,-rpath,{library.parent.resolve()}"]
    return _compiled("gpu_helper", [*FLAGS, str(_HERE / "gpu_helper.c"), *linked, *LIBRARIES])


def _compiled(name: str, arguments: Sequence[str]) -> Path:
    compiler = shlex.split(os.environ.get("CC") or "cc")
    out = _cache() / _identity([*compiler, *arguments]) / name
    if not out.is_file():
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".build-", dir=out.parent) as scratch:
            fresh = Path(scratch) / name
            _run([*compiler, *arguments, "-o", str(fresh)])
            fresh.replace(out)  # of two that compile at once, either's result is the same
    return out


def _cache() -> Path:
    return Path(os.environ.get("TILEWISE_CAPI_CACHE") or Path.home() / ".cache" / "tilewise" / "capi")


def _identity(command: Sequence[str]) -> str:
    digest = hashlib.sha256("\0".join(command).encode())
    for file in sorted([*_HERE.rglob("*.[ch]"), *_CORE.glob("*.[ch]")]):
        digest.update(f"\0{file.name}\0".encode() + file.read_bytes())
    return digest.hexdigest()[:16]


def _run(command: Sequence[str]) -> None:
    try:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
    except OSError as e:
        raise ConfigError(f"the C compiler {command[0]} does not run: {e}; install one, or name it in CC") from e
    if done.returncode:
        raise ConfigError(f"{command[0]} cannot compile the C library: {' '.join(done.stderr.split())[-500:]}")

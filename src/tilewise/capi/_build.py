"""Compilation of the C library with the system's compiler, once per state of the sources."""

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
    *(_HERE / f"{name}.c" for name in ("dispatcher", "error", "model", "model_file", "problem", "reference")),
    *(
        _CORE / f"{name}.c"
        for name in (
            "bytecode", "cost_model", "forest", "leaf_sums", "rank", "ranker", "search", "thresholds", "traverse",
            "workspace",
        )
    ),
)  # fmt: skip
# -ffp-contract=off: results must not depend on whether the processor has a fused multiply-add
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
    """Return the path of ``libtilewise.so``, compiled first if these sources are new.

    Libraries are cached under ``TILEWISE_CAPI_CACHE``, by default ``~/.cache/tilewise/capi``; ``CC`` names the
    compiler.

    Raises:
        ConfigError: there is no compiler, or it fails; the message ends with its output.
        OSError: the folder cannot be written.
    """
    return _compiled("libtilewise.so", [*FLAGS, "-shared", *map(str, SOURCES), *LIBRARIES])


def build_helper() -> Path:
    """Return the path of the command ``gpu_helper``, compiled like the library, which it finds by its absolute path."""
    library = build()
    linked = [str(library), f"-Wl,-rpath,{library.parent.resolve()}"]
    return _compiled("gpu_helper", [*FLAGS, "-D_GNU_SOURCE", str(_HERE / "gpu_helper.c"), *linked, *LIBRARIES, "-ldl"])


def _compiled(name: str, arguments: Sequence[str]) -> Path:
    compiler = shlex.split(os.environ.get("CC") or "cc")
    out = _cache() / _identity([*compiler, *arguments]) / name
    if not out.is_file():
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".build-", dir=out.parent) as scratch:
            fresh = Path(scratch) / name
            _run([*compiler, *arguments, "-o", str(fresh)])
            fresh.replace(out)  # processes that compile at the same time write equal files
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
        raise ConfigError(f"the C compiler {command[0]} cannot be run: {e}; install one, or set CC to its name") from e
    if done.returncode:
        raise ConfigError(f"{command[0]} cannot compile the C library: {' '.join(done.stderr.split())[-500:]}")

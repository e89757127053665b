"""What of this machine can change which kernel is the fastest; found without torch and without touching the GPU."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from tilewise.collect import nvml

_SOURCES = Path(__file__).parents[1] / "kernels" / "triton"


@dataclass(frozen=True)
class Machine:
    """A GPU and the software that compiles for it.

    Attributes:
        device: the GPU's name.
        arch: as targets name it, e.g. ``sm90``.
        driver: its version.
        torch, triton: versions of the libraries.
        kernels: :func:`kernels_hash` of the library that measured.
    """

    device: str
    arch: str
    driver: str
    torch: str
    triton: str
    kernels: str


@cache
def kernels_hash() -> str:
    """Identity of the kernels' sources: another source may be faster or slower."""
    digest = hashlib.sha256()
    for path in sorted(_SOURCES.glob("*.py")):
        content = path.read_bytes()
        digest.update(f"{path.name}\n{len(content)}\n".encode() + content)
    return digest.hexdigest()


@cache
def this_machine() -> Machine | None:
    """The first GPU that this process may see, with the software here; None where there is none, or no torch or triton.

    Machines whose GPUs differ should let a process see one kind (``CUDA_VISIBLE_DEVICES``).
    """
    from importlib import metadata  # takes a tenth of the time that everything else here takes to import

    gpu = nvml.describe(os.environ.get("CUDA_VISIBLE_DEVICES"))
    try:
        torch, triton = metadata.version("torch"), metadata.version("triton")
    except metadata.PackageNotFoundError:
        return None
    if gpu is None:
        return None
    name, (major, minor) = gpu
    return Machine(name, f"sm{major}{minor}", nvml.driver_version() or "", torch, triton, kernels_hash())

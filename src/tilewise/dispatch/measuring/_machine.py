"""The parts of a machine that can change which kernel is fastest, found without torch and without touching the GPU."""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path

_PACKAGE = Path(__file__).parents[2]
_KERNELS = _PACKAGE / "kernels" / "triton"


@dataclass(frozen=True)
class Machine:
    """A GPU, and the software that compiles for it.

    Attributes:
        device: the GPU's name.
        arch: its arch as targets name it, e.g. ``sm90``.
        driver: version of the driver.
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
    """Return the hash of the Triton kernels' code, which decides whether earlier measurements still hold.

    Comments, docstrings and formatting do not change it (:mod:`tilewise.dispatch.measuring._code_hash`).
    """
    from tilewise.dispatch.measuring._code_hash import code_hash  # only machines that measured something need it

    return code_hash(_PACKAGE, _KERNELS.rglob("*.py"))


@cache
def this_machine() -> Machine | None:
    """Return the first GPU visible to this process and its software, or None without a GPU, torch or triton.

    A machine with different GPUs should let a process see one kind (``CUDA_VISIBLE_DEVICES``).
    """
    from importlib import metadata  # both imports are costly, and most processes do not need them

    from tilewise.collect.engines import describe_gpu, driver_version

    gpu = describe_gpu(os.environ.get("CUDA_VISIBLE_DEVICES"))
    try:
        torch, triton = metadata.version("torch"), metadata.version("triton")
    except metadata.PackageNotFoundError:
        return None
    if gpu is None:
        return None
    name, (major, minor) = gpu
    return Machine(name, f"sm{major}{minor}", driver_version() or "", torch, triton, kernels_hash())

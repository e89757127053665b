"""CK Tile libraries that the user names as files and folders, and the kernel that one chooses for a problem."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from tilewise.errors import ConfigError, KernelError, LibraryError
from tilewise.kernels.ck._ck_kernel import parse_name
from tilewise.kernels.ck.libraries._conv_library import ConvLibrary
from tilewise.kernels.ck.libraries._gemm_library import GemmLibrary
from tilewise.kernels.ck.libraries._library import CkLibrary
from tilewise.kernels.ck.libraries._manifest import read_manifest
from tilewise.ops import Problem, Target

TensorMemory = Literal["host", "device"]

LIBRARY_TYPES: dict[str, type[CkLibrary]] = {"gemm": GemmLibrary, "grouped_conv": ConvLibrary}
_VARIABLES = {"gemm": "TILEWISE_CK_GEMM_LIB", "grouped_conv": "TILEWISE_CK_CONV_LIB"}
_CONV_MEMORY = "TILEWISE_CK_CONV_MEMORY"


@dataclass(frozen=True)
class CkLibraries:
    """The libraries of one op.

    Attributes:
        op: the op.
        files: the libraries' files, in order.
        memory: memory of the tensors whose pointers they take.
    """

    op: str
    files: tuple[Path, ...]
    memory: TensorMemory

    @classmethod
    def find(cls, op: str, paths: str | None = None, memory: str | None = None) -> Self:
        """Find the libraries that the user names.

        Args:
            op: the op.
            paths: files, folders of ``*.so`` files, and manifests, separated by ``:``; None reads
                ``TILEWISE_CK_GEMM_LIB`` or ``TILEWISE_CK_CONV_LIB``.
            memory: memory of a convolution's tensors, ``device`` or ``host``; None reads ``TILEWISE_CK_CONV_MEMORY``
                and defaults to device. A matrix product's tensors are always in host memory.

        Raises:
            ConfigError: no library is named, a folder holds none, a manifest does not fit its libraries, or `op` or
                `memory` is unknown.
        """
        if op not in LIBRARY_TYPES:
            raise ConfigError(f"CK Tile has no libraries of {op}; it has libraries of {', '.join(LIBRARY_TYPES)}")
        paths = paths or os.environ.get(_VARIABLES[op], "")
        files = [file for path in paths.split(":") if path for file in _files(Path(path))]
        if not files:
            raise ConfigError(f"no CK Tile library of {op} is named: set {_VARIABLES[op]} to files or folders of them")
        return cls(op, tuple(dict.fromkeys(files)), cls.memory_of(op, memory))

    @staticmethod
    def memory_of(op: str, memory: str | None = None) -> TensorMemory:
        """Return the memory of the tensors, see :meth:`find`.

        Raises:
            ConfigError: `memory` is unknown.
        """
        if op == "gemm":
            return "host"
        memory = memory or os.environ.get(_CONV_MEMORY) or "device"
        if memory not in ("host", "device"):
            raise ConfigError(f"memory ({_CONV_MEMORY}) must be host or device, got {memory!r}")
        return memory  # type: ignore[return-value]

    @staticmethod
    def are_named(op: str, paths: str | None = None) -> bool:
        """Return whether `paths`, or the op's environment variable, names libraries."""
        return bool(paths or os.environ.get(_VARIABLES.get(op, ""), ""))

    def open(self, file: Path) -> CkLibrary:
        """Open one of the files; see :meth:`tilewise.kernels.ck.CkLibrary.open`."""
        return LIBRARY_TYPES[self.op].open(file)


def _files(path: Path) -> list[Path]:
    if path.suffix == ".json":
        return [*read_manifest(path)]
    if not path.is_dir():
        return [path]  # opening it reports any fault
    files = sorted(path.glob("*.so"))
    if not files:
        raise ConfigError(f"{path}: the folder holds no *.so file; name a library or a folder of them")
    return files


def chosen_kernel(library: CkLibrary, problem: Problem, target: Target) -> str | None:
    """Return the pool's name of the kernel that a library runs a problem with; None if it is not one of `target`.

    Raises:
        LibraryError: the library returns an error code, or a name that CK Tile does not use.
        KernelError: the library's C API cannot hold the problem.
    """
    reported = library.select_kernel(problem, target.variant)
    if reported is None:
        return None
    try:
        name = parse_name(reported)
    except KernelError as e:
        raise LibraryError(f"{library.path}: {e}") from e
    if (name.op, name.variant, name.dtype) != (target.op, target.variant, target.dtype):
        return None
    if name.kernel.gemm_layout not in ("", getattr(problem, "layout", "")):  # the C API passes M, N and K only
        return None
    return name.canonical

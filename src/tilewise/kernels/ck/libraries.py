"""Which libraries there are: files and folders that the user names, and what they choose for a problem."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from tilewise.errors import ConfigError, KernelError, LibraryError
from tilewise.kernels.ck.conv_library import ConvLibrary
from tilewise.kernels.ck.gemm_library import GemmLibrary
from tilewise.kernels.ck.kernel import parse_name
from tilewise.kernels.ck.library import Library
from tilewise.ops import Problem, Target

Memory = Literal["host", "device"]

KINDS: dict[str, type[Library]] = {"gemm": GemmLibrary, "grouped_conv": ConvLibrary}
_VARIABLES = {"gemm": "TILEWISE_CK_GEMM_LIB", "grouped_conv": "TILEWISE_CK_CONV_LIB"}
_CONV_MEMORY = "TILEWISE_CK_CONV_MEMORY"


@dataclass(frozen=True)
class Libraries:
    """The libraries of one op.

    Attributes:
        op: the op.
        files: of the libraries, in order.
        memory: where the tensors lie whose pointers they take.
    """

    op: str
    files: tuple[Path, ...]
    memory: Memory

    @classmethod
    def find(cls, op: str, paths: str | None = None, memory: str | None = None) -> Self:
        """Those that the user names.

        Args:
            op: the op.
            paths: libraries, and folders whose ``*.so`` are meant, separated by ``:``; None: ``TILEWISE_CK_GEMM_LIB``
                or ``TILEWISE_CK_CONV_LIB``.
            memory: of a convolution's tensors, ``device`` or ``host``; None: ``TILEWISE_CK_CONV_MEMORY``, else device.
                A matrix product's are always the host's.

        Raises:
            ConfigError: none is named, a path does not exist, or a folder has none.
        """
        if op not in KINDS:
            raise ConfigError(f"CK Tile has no libraries of {op}; it has those of {', '.join(KINDS)}")
        paths = paths or os.environ.get(_VARIABLES[op], "")
        files = [file for path in paths.split(":") if path for file in _files(Path(path))]
        if not files:
            raise ConfigError(f"no CK Tile library of {op} is named: set {_VARIABLES[op]} to files or folders of them")
        if op == "gemm":
            memory = "host"
        memory = memory or os.environ.get(_CONV_MEMORY) or "device"
        if memory not in ("host", "device"):
            raise ConfigError(f"memory ({_CONV_MEMORY}) must be host or device, got {memory!r}")
        return cls(op, tuple(dict.fromkeys(files)), memory)  # type: ignore[arg-type]

    def open(self, file: Path) -> Library:
        """See :meth:`tilewise.kernels.ck.library.Library.open`."""
        return KINDS[self.op].open(file)


def _files(path: Path) -> list[Path]:
    if not path.is_dir():
        return [path]  # who opens it says what is wrong with it
    files = sorted(path.glob("*.so"))
    if not files:
        raise ConfigError(f"{path}: a folder without any *.so")
    return files


def chosen_kernel(library: Library, problem: Problem, target: Target) -> str | None:
    """The kernel that a library runs a problem with, as pools name it; None where it is none for this target.

    Raises:
        LibraryError: it gives an error code, or a name that is none of CK Tile's.
        KernelError: the library's C API cannot hold the problem.
    """
    told = library.select_kernel(problem, target.variant)
    if told is None:
        return None
    try:
        name = parse_name(told)
    except KernelError as e:
        raise LibraryError(f"{library.path}: {e}") from e
    if (name.op, name.variant, name.dtype) != (target.op, target.variant, target.dtype):
        return None
    if name.kernel.gemm_layout not in ("", getattr(problem, "layout", "")):  # it is asked for M, N and K alone
        return None
    return name.canonical

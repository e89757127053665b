"""A checkout of Composable Kernel: the files that a build needs, and the digest of all that it depends on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Self

from tilewise.errors import ConfigError

_INSIDE = ("", "projects/composablekernel")  # the second: in ROCm's joint repository of libraries
GENERATORS = {
    "gemm": "dispatcher/codegen/unified_gemm_codegen.py",
    "grouped_conv": "dispatcher/codegen/unified_grouped_conv_codegen.py",
}
_SOURCES = ("include", "dispatcher/include", "dispatcher/codegen", "dispatcher/bindings/ctypes")
_SKIPPED = {"__pycache__", "Testing"}


@dataclass(frozen=True)
class Checkout:
    """A checkout.

    Attributes:
        root: the folder with ``include`` and ``dispatcher``.
    """

    root: Path

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Return the checkout in a folder, in ROCm's joint repository too.

        Raises:
            ConfigError: the folder does not hold Composable Kernel with its dispatcher.
        """
        for inside in _INSIDE:
            root = Path(path, inside).resolve()
            if (root / "dispatcher" / "codegen").is_dir() and (root / "include").is_dir():
                return cls(root)
        raise ConfigError(
            f"{path} is not a checkout of Composable Kernel: it must hold include/ and dispatcher/codegen/; "
            "give ck.checkout=FOLDER (of ROCm/composable_kernel, or of ROCm/rocm-libraries)"
        )

    def generator(self, op: str) -> Path:
        """Return the script that writes the code of an op's kernels.

        Raises:
            ConfigError: this checkout does not have it.
        """
        return self._required(GENERATORS[op], "it is older or newer than the dispatcher that this library knows")

    def binding(self, name: str) -> Path:
        """Return the source of a library with the C API.

        Raises:
            ConfigError: this checkout does not have it.
        """
        return self._required(f"dispatcher/bindings/ctypes/{name}", "its dispatcher lacks this kind of kernel")

    @property
    def static_library(self) -> Path:
        """The dispatcher itself, which every library contains.

        Raises:
            ConfigError: it has not been built.
        """
        dispatcher = self.root / "dispatcher"
        build = dispatcher / "build"
        return self._required(
            "dispatcher/build/libck_tile_dispatcher.a",
            f"build this target once: cmake -S {dispatcher} -B {build} -D CMAKE_CXX_COMPILER=hipcc "
            f"&& cmake --build {build} --target ck_tile_dispatcher",
        )

    @cached_property
    def digest(self) -> str:
        """SHA-256 of the paths and contents of all sources, and of the static library."""
        digest = hashlib.sha256()
        for file in self._files():
            digest.update(f"{file.relative_to(self.root).as_posix()}\0".encode())
            digest.update(hashlib.sha256(file.read_bytes()).digest())
        return digest.hexdigest()

    def _files(self) -> Iterator[Path]:
        for folder in _SOURCES:
            found = (p for p in (self.root / folder).rglob("*") if not _SKIPPED & set(p.parts) and p.is_file())
            yield from sorted(found)
        yield self.static_library

    def _required(self, path: str, remedy: str) -> Path:
        file = self.root / path
        if not file.is_file():
            raise ConfigError(f"{file} is missing; {remedy}")
        return file

"""A shared library with CK Tile's C API: opened, checked, asked and cleaned up.

Such a library keeps its state in globals, so a file has one object a process, however often it is opened; it is
initialised once, called by one thread at a time, and cleaned up by the last who closes it, at exit at the latest. What
a GPU's driver holds does not survive a fork: a child refuses what its parent opened, and may open the file itself.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, NamedTuple, Self

from tilewise.errors import ConfigError, KernelError, LibraryError
from tilewise.ops import Problem

_log = logging.getLogger(__name__)

NO_KERNEL = -2  # of the functions that run a kernel; every other negative number is an error
_NAME_SIZES = (256, 4096, 65536)  # a name that does not fit is cut or refused, so that a larger buffer is tried
_HEAD_BYTES = 20  # of an ELF file, up to its machine
_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64"}  # of ELF headers


class Signature(NamedTuple):
    """Types of a C function."""

    result: Any
    arguments: tuple[Any, ...] = ()


class Library(ABC):
    """An open library; made by :meth:`open`. Threads may share it.

    Methods raise LibraryError where a function gives an error code, or where the library is closed or was opened by
    the process that this one was forked from.

    Attributes:
        prefix: of its functions' names.
        functions: the types of each by name, without the prefix; all must be there.
    """

    prefix: ClassVar[str]
    functions: ClassVar[Mapping[str, Signature]]

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock, self._pid, self._users = threading.Lock(), os.getpid(), 0
        handle = _load(path)
        self._loaded = {name: self._declared(handle, name) for name in self.functions}
        self._require_ok("init", self._call("init"))
        self.kernel_count = int(self._call("get_kernel_count"))
        if self.kernel_count < 1:
            self._end()
            raise LibraryError(f"{path}: {self.prefix}get_kernel_count gives {self.kernel_count}: it holds no kernel")

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open the library in a file, or the one that this process has open there already.

        Raises:
            ConfigError: it cannot be such a library: no shared library of this machine, or a function is missing.
            LibraryError: it does not start, or holds no kernel.
        """
        path = Path(path).resolve()
        with _opening:
            library = _open.get((cls, path))
            if library is None:
                library = _open[cls, path] = cls(path)
            library._users += 1
        return library  # type: ignore[return-value]

    def close(self) -> None:
        """Give it back; the last who does cleans up."""
        with _opening:
            self._users -= 1
            if self._users == 0 and _open.get((type(self), self.path)) is self:
                del _open[type(self), self.path]
                self._end()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def is_supported(self, problem: Problem, variant: str) -> bool:
        """Whether it runs the problem."""
        answer = int(self._call("is_supported", *self._problem(problem, variant)))
        if answer not in (0, 1):
            raise self._failed("is_supported", answer)
        return answer == 1

    def select_kernel(self, problem: Problem, variant: str) -> str | None:
        """Name of the kernel that it runs the problem with, as it spells it; None where it does not support it."""
        if not self.is_supported(problem, variant):
            return None
        for size in _NAME_SIZES:
            buffer = ctypes.create_string_buffer(size + 1)  # one more than it is told, so that the text has an end
            code = int(self._call("select_kernel", *self._problem(problem, variant), buffer, size))
            if code == 0 and len(buffer.value) < size - 1:
                return self._name(buffer.value)
        self._require_ok("select_kernel", code)
        raise LibraryError(f"{self.path}: {self.prefix}select_kernel gives a name of {_NAME_SIZES[-1]} bytes or more")

    @abstractmethod
    def run(self, problem: Problem, variant: str, operands: Sequence[int], result: int, stream: int = 0) -> float:
        """Run the kernel that it selects.

        Args:
            problem: the problem.
            variant: of its op.
            operands: pointers, in the order of :data:`tilewise.kernels.operands.TENSORS`.
            result: pointer to where the result goes.
            stream: pointer of the device's stream; 0: the default one.

        Returns:
            Milliseconds, by the library's own clock.

        Raises:
            KernelError: it has no kernel for the problem.
            LibraryError: the kernel failed.
        """

    @abstractmethod
    def _problem(self, problem: Problem, variant: str) -> tuple[Any, ...]:
        """The problem as the functions' first arguments; a KernelError where they cannot hold it."""

    def _call(self, name: str, *arguments: Any) -> Any:
        if self._pid != os.getpid():
            raise LibraryError(f"{self.path} was opened before this process was forked; open it anew here")
        with self._lock:
            function = self._loaded.get(name)
            if function is None:
                raise LibraryError(f"{self.path} is closed")
            return function(*arguments)

    def _end(self) -> None:
        code = self._call("cleanup")
        if code:
            _log.warning("%s: %scleanup returned %d", self.path, self.prefix, code)
        self._loaded = {}

    def _require_ok(self, name: str, code: int) -> None:
        if code:
            raise self._failed(name, code)

    def _failed(self, name: str, code: float) -> KernelError | LibraryError:
        if code == NO_KERNEL and name.startswith("run"):
            return KernelError(f"{self.path}: {self.prefix}{name} has no kernel for the problem")
        return LibraryError(f"{self.path}: {self.prefix}{name} returned {code:g}")

    def _name(self, text: bytes) -> str:
        if not text or not text.isascii():
            raise LibraryError(f"{self.path}: {self.prefix}select_kernel gives {text!r}, which is no name")
        return text.decode()

    def _declared(self, handle: ctypes.CDLL, name: str) -> Any:
        try:
            function = getattr(handle, f"{self.prefix}{name}")
        except AttributeError:
            raise ConfigError(f"{self.path} has no function {self.prefix}{name}: it has not CK Tile's C API") from None
        function.restype, function.argtypes = self.functions[name]
        return function


_open: dict[tuple[type[Library], Path], Library] = {}
_opening = threading.Lock()


def _load(path: Path) -> ctypes.CDLL:
    try:
        head = _head(path)
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}") from e
    if head[:4] != b"\x7fELF" or len(head) < _HEAD_BYTES:
        raise ConfigError(f"{path} is no shared library")
    there, here = _machine(head), _machine(_head(Path("/proc/self/exe")))
    if there != here:  # the loader would say that there is no such file
        raise ConfigError(f"{path} is for {there}, this process is {here}")
    try:
        return ctypes.CDLL(str(path))
    except OSError as e:
        raise ConfigError(f"{path} cannot be loaded: {e}") from e


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD_BYTES)


def _machine(head: bytes) -> str:
    """The machine of an ELF header, e.g. ``64-bit x86_64``."""
    number = int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
    return f"{32 * head[4]}-bit {_MACHINES.get(number, f'machine {number}')}"


@atexit.register
def close_all() -> None:
    """Clean up whatever this process has open, as happens at exit by itself; its users find it closed."""
    with _opening:
        while _open:
            _, library = _open.popitem()
            library._end()


def _after_fork() -> None:
    global _opening
    _opening = threading.Lock()  # another thread may have held it
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)

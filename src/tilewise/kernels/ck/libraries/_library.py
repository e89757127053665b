"""Client of shared libraries with CK Tile's C API: opens, checks, calls and cleans them up.

Such a library keeps its state in globals. So a file has one object per process, however often it is opened: the library
is initialised once, called by one thread at a time, and cleaned up by the last user who closes it, at exit at the
latest. A GPU driver's state does not survive a fork, so a child process cannot use a library that its parent opened; it
may open the file again.
"""

from __future__ import annotations

import atexit
import ctypes
import logging
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Self

from tilewise.errors import ConfigError, KernelError, LibraryError
from tilewise.ops import Problem

if TYPE_CHECKING:
    from ctypes import _CData  # the common base of ctypes' types, which only type stubs name

_log = logging.getLogger(__name__)

_Result = Any  # of a C function: int, float, bytes or None, by its signature

NO_KERNEL = -2  # returned by the functions that run a kernel; every other negative number is an error
_NAME_SIZES = (256, 4096, 65536)  # buffer sizes to try: a library truncates or refuses a name that does not fit
_HEAD_BYTES = 20  # of an ELF file, up to and including its machine
_MACHINES = {62: "x86_64", 183: "aarch64", 243: "riscv64"}  # of ELF headers


class Signature(NamedTuple):
    """Types of a C function."""

    result: type[_CData] | None
    arguments: tuple[type[_CData], ...] = ()


class CkLibrary(ABC):
    """An open library, as returned by :meth:`open`. Threads may share it.

    Methods raise a LibraryError if a C function returns an error code, if the library is closed, or if it was opened
    before this process was forked.

    Attributes:
        prefix: the prefix of its functions' names.
        functions: types of each required function, by its name without the prefix.
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
            raise LibraryError(f"{path}: {self.prefix}get_kernel_count must be at least 1, got {self.kernel_count}")

    @classmethod
    def open(cls, path: str | Path) -> Self:
        """Open the library in a file, or return the object that this process has open for it.

        Raises:
            ConfigError: the file is not a shared library of this machine, or a function is missing.
            LibraryError: the library does not start, or holds no kernel.
        """
        path = Path(path).resolve()
        with _opening:
            library = _open.get((cls, path))
            if library is None:
                library = _open[cls, path] = cls(path)
            library._users += 1
        return library  # type: ignore[return-value]

    def close(self) -> None:
        """Release the library; the last user's call cleans it up."""
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
        """Return whether the library runs the problem."""
        answer = int(self._call("is_supported", *self._problem(problem, variant)))
        if answer not in (0, 1):
            raise self._failed("is_supported", answer)
        return answer == 1

    def kernel_names(self) -> tuple[str, ...]:
        """Return the names of all kernels in the library's spelling; none if its C API does not list them.

        Raises:
            LibraryError: the library does not export a list of kernels.
        """
        return ()

    def select_kernel(self, problem: Problem, variant: str) -> str | None:
        """Return the library's name of the kernel that it runs the problem with; None if it does not support it."""
        if not self.is_supported(problem, variant):
            return None
        for size in _NAME_SIZES:
            buffer = ctypes.create_string_buffer(size + 1)  # one byte more than stated, so that the text ends
            code = int(self._call("select_kernel", *self._problem(problem, variant), buffer, size))
            if code == 0 and len(buffer.value) < size - 1:
                return self._name(buffer.value)
        self._require_ok("select_kernel", code)
        raise LibraryError(f"{self.path}: {self.prefix}select_kernel gives a name of {_NAME_SIZES[-1]} bytes or more")

    @abstractmethod
    def run(self, problem: Problem, variant: str, operands: Sequence[int], result: int, stream: int = 0) -> float:
        """Run the kernel that the library selects.

        Args:
            problem: the problem.
            variant: the variant of its op.
            operands: pointers, in the order of :data:`tilewise.kernels.TENSORS`.
            result: pointer to the memory of the result.
            stream: pointer to the device's stream; 0 is the default one.

        Returns:
            Milliseconds, by the library's own clock.

        Raises:
            KernelError: the library has no kernel for the problem.
            LibraryError: the kernel failed.
        """

    @abstractmethod
    def _problem(self, problem: Problem, variant: str) -> tuple[object, ...]:
        """Return the problem as the functions' first arguments.

        Raises:
            KernelError: they cannot hold it.
        """

    def _call(self, name: str, *arguments: object) -> _Result:
        if self._pid != os.getpid():
            raise LibraryError(f"{self.path} was opened before this process was forked; open it again here")
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
            raise LibraryError(f"{self.path}: {self.prefix}select_kernel must give an ASCII name, got {text!r}")
        return text.decode()

    def _declared(self, handle: ctypes.CDLL, name: str) -> Callable[..., _Result]:
        try:
            function: Callable[..., _Result] = getattr(handle, f"{self.prefix}{name}")
        except AttributeError:
            raise ConfigError(
                f"{self.path} has no function {self.prefix}{name}, so it does not have CK Tile's C API"
            ) from None
        function.restype, function.argtypes = self.functions[name]  # type: ignore[attr-defined]
        return function


_open: dict[tuple[type[CkLibrary], Path], CkLibrary] = {}
_opening = threading.Lock()


def _load(path: Path) -> ctypes.CDLL:
    try:
        head = _head(path)
    except OSError as e:
        raise ConfigError(f"{path} cannot be read: {e.strerror}") from e
    if head[:4] != b"\x7fELF" or len(head) < _HEAD_BYTES:
        raise ConfigError(f"{path} is not a shared library")
    there, here = _machine(head), _machine(_head(Path("/proc/self/exe")))
    if there != here:  # the loader's own message would be "no such file"
        raise ConfigError(f"{path} is for {there}, this process is {here}")
    try:
        return ctypes.CDLL(str(path))
    except OSError as e:
        raise ConfigError(f"{path} cannot be loaded: {e}") from e


def _head(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(_HEAD_BYTES)


def _machine(head: bytes) -> str:
    """Return the machine of an ELF header, e.g. ``64-bit x86_64``."""
    number = int.from_bytes(head[18:20], "little" if head[5] == 1 else "big")
    return f"{32 * head[4]}-bit {_MACHINES.get(number, f'machine {number}')}"


@atexit.register
def close_all() -> None:
    """Clean up every library that this process has open; runs at exit as well. Users then find them closed."""
    with _opening:
        while _open:
            _, library = _open.popitem()
            library._end()


def _after_fork() -> None:
    global _opening
    _opening = threading.Lock()  # another thread may have held it
    _open.clear()


os.register_at_fork(after_in_child=_after_fork)

"""Client of CK Tile's matrix product library (``libdispatcher_gemm_lib.so``): pointers to host memory, one layout."""

from __future__ import annotations

import ctypes as c
import json
import math
from collections.abc import Sequence

from tilewise.errors import LibraryError
from tilewise.kernels.ck.libraries._library import CkLibrary, Signature
from tilewise.ops import Problem

_SIZES = (c.c_int64, c.c_int64, c.c_int64)  # M, N, K


class GemmLibrary(CkLibrary):
    """An open library of matrix products; each run waits for the device, copies included."""

    prefix = "dispatcher_"
    functions = {  # noqa: RUF012 - declared as a ClassVar by the base class
        "init": Signature(c.c_int),
        "is_supported": Signature(c.c_int, _SIZES),
        "select_kernel": Signature(c.c_int, (*_SIZES, c.c_char_p, c.c_int)),
        "run_gemm": Signature(c.c_int, (c.c_void_p, c.c_void_p, c.c_void_p, *_SIZES, c.POINTER(c.c_float))),
        "get_kernel_count": Signature(c.c_int),
        "export_registry_json": Signature(c.c_char_p),
        "cleanup": Signature(None),
    }

    def run(self, problem: Problem, variant: str, operands: Sequence[int], result: int, stream: int = 0) -> float:
        """Run a matrix product; `stream` is ignored. See :meth:`CkLibrary.run`."""
        ms = c.c_float(-1)
        code = self._call("run_gemm", *operands, result, *self._problem(problem, variant), c.byref(ms))
        self._require_ok("run_gemm", code)
        if not 0 <= ms.value < math.inf:
            raise LibraryError(f"{self.path}: dispatcher_run_gemm took {ms.value:g} ms")
        return ms.value

    def kernel_names(self) -> tuple[str, ...]:
        """Return the names of all kernels in the library's spelling.

        Raises:
            LibraryError: the library does not export a list of kernels.
        """
        text = self._call("export_registry_json")
        try:
            return tuple(str(kernel["name"]) for kernel in json.loads(text)["kernels"])
        except (TypeError, KeyError, ValueError) as e:
            raise LibraryError(f"{self.path}: dispatcher_export_registry_json must list kernels: {e!r}") from e

    def _problem(self, problem: Problem, variant: str) -> tuple[int, int, int]:
        return problem.M, problem.N, problem.K  # type: ignore[attr-defined]

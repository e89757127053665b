"""CK Tile's libraries of convolutions (``libdispatcher_conv_lib.so``, and another one for backward weight)."""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence
from typing import Any

from tilewise.errors import KernelError, LibraryError
from tilewise.kernels.ck.library import Library, Signature
from tilewise.ops import Problem
from tilewise.ops.grouped_conv import VARIANTS

# Our columns in the struct's order; its names differ, its last field is the direction.
_COLUMNS = (
    *("N", "G", "C", "K", "Di", "Hi", "Wi", "Z", "Y", "X", "stride_d", "stride_h", "stride_w"),
    *("pad_d", "pad_h", "pad_w", "dilation_d", "dilation_h", "dilation_w"),
)
_MOST = 2**31 - 1


class ConvProblemC(c.Structure):
    """The problem as C has it; C and K count over all groups."""

    _fields_ = [(name, c.c_int) for name in (*_COLUMNS, "direction")]


class ConvLibrary(Library):
    """See :class:`tilewise.kernels.ck.library.Library`; pointers are of device memory in CK Tile's own."""

    prefix = "conv_dispatcher_"
    functions = {  # noqa: RUF012 - a ClassVar of the base
        "init": Signature(c.c_int),
        "is_supported": Signature(c.c_int, (c.POINTER(ConvProblemC),)),
        "select_kernel": Signature(c.c_int, (c.POINTER(ConvProblemC), c.c_char_p, c.c_int)),
        "run": Signature(c.c_float, (c.c_void_p, c.c_void_p, c.c_void_p, c.POINTER(ConvProblemC), c.c_void_p)),
        "get_kernel_count": Signature(c.c_int),
        "cleanup": Signature(c.c_int),
    }

    def run(self, problem: Problem, variant: str, operands: Sequence[int], result: int, stream: int = 0) -> float:
        """See :meth:`Library.run`."""
        first, second = operands[::-1] if variant == "bwd_weight" else operands  # it takes x, dy; we have dy, x
        ms = float(self._call("run", first, second, result, *self._problem(problem, variant), stream or None))
        if ms < 0:
            raise self._failed("run", ms)
        if not ms < float("inf"):
            raise LibraryError(f"{self.path}: conv_dispatcher_run took {ms:g} ms")
        return ms

    def _problem(self, problem: Problem, variant: str) -> tuple[Any, ...]:
        sizes = [getattr(problem, name) for name in _COLUMNS]
        if max(sizes) > _MOST:  # ctypes would cut it
            raise KernelError(f"{self.path}: {problem} has a size beyond 32 bits")
        return (ConvProblemC(*sizes, VARIANTS.index(variant)),)

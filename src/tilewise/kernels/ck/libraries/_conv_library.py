"""Client of CK Tile's convolution libraries (``libdispatcher_conv_lib.so``, and a second one for backward weight)."""

from __future__ import annotations

import ctypes as c
from collections.abc import Sequence

from tilewise.errors import KernelError, LibraryError
from tilewise.kernels.ck.libraries._library import CkLibrary, Signature
from tilewise.ops import CHANNELS_LAST, CONV_VARIANTS, Problem

# tilewise's columns in the order of the C struct, whose field names differ. Its last field is the direction.
_COLUMNS = (
    *("N", "G", "C", "K", "Di", "Hi", "Wi", "Z", "Y", "X", "stride_d", "stride_h", "stride_w"),
    *("pad_d", "pad_h", "pad_w", "dilation_d", "dilation_h", "dilation_w"),
)
_MAX_SIZE = 2**31 - 1


class ConvProblemC(c.Structure):
    """The C API's problem struct; C and K count over all groups."""

    _fields_ = [(name, c.c_int) for name in (*_COLUMNS, "direction")]


class ConvLibrary(CkLibrary):
    """An open library of convolutions; CK Tile's own libraries take pointers to device memory."""

    prefix = "conv_dispatcher_"
    functions = {  # noqa: RUF012 - declared as a ClassVar by the base class
        "init": Signature(c.c_int),
        "is_supported": Signature(c.c_int, (c.POINTER(ConvProblemC),)),
        "select_kernel": Signature(c.c_int, (c.POINTER(ConvProblemC), c.c_char_p, c.c_int)),
        "run": Signature(c.c_float, (c.c_void_p, c.c_void_p, c.c_void_p, c.POINTER(ConvProblemC), c.c_void_p)),
        "get_kernel_count": Signature(c.c_int),
        "cleanup": Signature(c.c_int),
    }

    def run(self, problem: Problem, variant: str, operands: Sequence[int], result: int, stream: int = 0) -> float:
        """Run a convolution; see :meth:`CkLibrary.run`."""
        first, second = operands[::-1] if variant == "bwd_weight" else operands
        ms = float(self._call("run", first, second, result, *self._problem(problem, variant), stream or None))
        if ms < 0:
            raise self._failed("run", ms)
        if not ms < float("inf"):
            raise LibraryError(f"{self.path}: conv_dispatcher_run took {ms:g} ms")
        return ms

    def _problem(self, problem: Problem, variant: str) -> tuple[ConvProblemC]:
        sizes = [getattr(problem, name) for name in _COLUMNS]
        if problem.to_dict()["layout"] != CHANNELS_LAST:
            raise KernelError(f"{self.path}: arrays with channels first are not passed through the C API")
        if max(sizes) > _MAX_SIZE:  # ctypes would truncate it
            raise KernelError(f"{self.path}: {problem} has a size beyond 32 bits, the C API's limit")
        return (ConvProblemC(*sizes, CONV_VARIANTS.index(variant)),)

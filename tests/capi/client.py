"""A ctypes client of the C library, and the library itself, compiled once per state of its sources."""

from __future__ import annotations

import ctypes as c
import os
import shutil
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tilewise.capi import build, build_helper
from tilewise.ops import Problem

os.environ.setdefault("TILEWISE_CAPI_CACHE", str(Path(__file__).parents[2] / "build" / "capi"))
CC = shutil.which(os.environ.get("CC", "cc"))
needs_compiler = pytest.mark.skipif(CC is None, reason="there is no C compiler")

BAD_ARGUMENT, NO_KERNEL, NOT_READY, BAD_FILE, BUFFER_TOO_SMALL, BAD_PROBLEM = -1, -2, -3, -4, -5, -6
UNSUPPORTED = -8
_CONV = "n c k g hi wi y x stride_h stride_w pad_h pad_w dilation_h dilation_w di z stride_d pad_d dilation_d"


class Gemm(c.Structure):
    _fields_ = [("m", c.c_int64), ("n", c.c_int64), ("k", c.c_int64), ("layout", c.c_char * 8)]


class Conv(c.Structure):
    _fields_ = [*((name, c.c_int64) for name in _CONV.split()), ("layout", c.c_char * 8)]


class _Of(c.Union):
    _fields_ = [("gemm", Gemm), ("conv", Conv)]


class CProblem(c.Structure):
    _fields_ = [("size", c.c_uint32), ("op", c.c_uint32), ("of", _Of)]


def c_gemm(m: int, n: int, k: int, layout: str = "rcr") -> CProblem:
    return CProblem(c.sizeof(CProblem), 1, _Of(gemm=Gemm(m, n, k, layout.encode())))


def c_conv(layout: str = "NHWGC", **columns: int) -> CProblem:
    return CProblem(c.sizeof(CProblem), 2, _Of(conv=Conv(layout=layout.encode(), **columns)))


def c_problem(problem: Problem) -> CProblem:
    columns = problem.to_dict()
    if problem.op == "gemm":
        return c_gemm(columns["M"], columns["N"], columns["K"], columns["layout"])
    return c_conv(**{name.lower(): value for name, value in columns.items()})


@cache
def library() -> Any:
    lib = c.CDLL(str(build()))
    lib.tilewise_last_error.restype = lib.tilewise_target.restype = lib.tilewise_export_json.restype = c.c_char_p
    lib.tilewise_target.argtypes = lib.tilewise_export_json.argtypes = lib.tilewise_kernel_count.argtypes = [c.c_void_p]
    lib.tilewise_close.argtypes = lib.tilewise_kernel_count.argtypes
    lib.tilewise_select_kernel.argtypes = [c.c_void_p, c.c_void_p, c.c_char_p, c.c_size_t]
    lib.tilewise_is_supported.argtypes = [c.c_void_p, c.c_void_p]
    lib.tilewise_predict.argtypes = [c.c_void_p, c.c_void_p, c.c_int, c.c_void_p, c.c_void_p]
    lib.tilewise_rank.argtypes = [c.c_void_p, c.c_void_p, c.c_int, c.c_void_p, c.c_void_p]
    return lib


@cache
def helper() -> Path:
    return build_helper()


class Client:
    """One open model."""

    def __init__(self, path: str | Path) -> None:
        self.lib, self.model = library(), c.c_void_p()
        self.code = self.lib.tilewise_open(str(path).encode(), c.byref(self.model))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.lib.tilewise_close(self.model)

    @property
    def error(self) -> str:
        message: bytes = self.lib.tilewise_last_error()
        return message.decode()

    def is_supported(self, problem: CProblem) -> int:
        return int(self.lib.tilewise_is_supported(self.model, c.byref(problem)))

    def select(self, problem: CProblem) -> str | int:
        name = c.create_string_buffer(256)
        code = self.lib.tilewise_select_kernel(self.model, c.byref(problem), name, 256)
        return int(code) if code else name.value.decode()

    def rank(self, problem: CProblem, most: int) -> tuple[list[int], list[float]]:
        kernels, scores = (c.c_int32 * most)(), (c.c_double * most)()
        found = self.lib.tilewise_rank(self.model, c.byref(problem), most, kernels, scores)
        return kernels[: max(found, 0)], scores[: max(found, 0)]

    def predict(self, problem: CProblem, most: int) -> list[tuple[int, float, float, float]] | int:
        """Return kernel, TFLOPS, milliseconds and GB/s of the best kernels, or the error."""
        kernels, figures = (c.c_int32 * most)(), (c.c_double * (3 * most))()
        found = self.lib.tilewise_predict(self.model, c.byref(problem), most, kernels, figures)
        if found < 0:
            return int(found)
        return [(kernels[i], figures[3 * i], figures[3 * i + 1], figures[3 * i + 2]) for i in range(found)]

"""What a library is told of an array: NumPy's for host memory, PyTorch's for either. Needs NumPy alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np


def operand_elements(dtype: str, arch: str) -> tuple[str, ...]:
    """Names of the element types that hold a target's operands; plain integers hold bits that NumPy has no type for."""
    if dtype == "fp8":
        return fp8_element(arch), "uint8"
    return {"fp16": ("float16",), "bf16": ("bfloat16", "uint16")}[dtype]


def result_elements(dtype: str, arch: str) -> tuple[str, ...]:
    """The same of its result."""
    return ("float16",) if dtype == "fp8" else operand_elements(dtype, arch)


def fp8_element(arch: str) -> str:
    """The e4m3 that an arch multiplies: gfx942's has another bias and no negative zero."""
    return "float8_e4m3fnuz" if arch == "gfx942" else "float8_e4m3fn"


@dataclass(slots=True)
class Array:
    """An array's memory.

    Attributes:
        pointer: to its first element.
        shape: its sizes.
        element: the element type's name, as NumPy and PyTorch have it.
        place: ``host``, or the device as PyTorch names it.
        contiguous: whether it lies row by row, without gaps.
        writeable: whether a result may go there.
    """

    pointer: int
    shape: tuple[int, ...]
    element: str
    place: str
    contiguous: bool
    writeable: bool = True


def array_of(value: Any) -> Array | None:
    """What an array is made of; None for anything else."""
    if isinstance(value, np.ndarray):
        flags = value.flags
        element = _name_of(value.dtype)
        return Array(value.ctypes.data, value.shape, element, "host", flags.c_contiguous, flags.writeable)
    if not hasattr(value, "data_ptr"):
        return None
    place = "host" if value.device.type == "cpu" else str(value.device)
    return Array(value.data_ptr(), tuple(value.shape), _name_of(value.dtype), place, value.is_contiguous())


@cache
def _name_of(dtype: Any) -> str:
    """The name of NumPy's or PyTorch's element type; a foreign byte order belongs to it."""
    return str(dtype).removeprefix("torch.")


def empty(shape: tuple[int, ...], dtype: str, like: Any) -> Any:
    """An array for a result of the operands' type `dtype`, of the kind and in the place of the operand `like`."""
    if isinstance(like, np.ndarray):
        return np.empty(shape, dtype=np.float16 if dtype == "fp8" else like.dtype)
    if dtype != "fp8":
        return like.new_empty(shape)
    import torch  # whose tensor `like` is

    return like.new_empty(shape, dtype=torch.float16)

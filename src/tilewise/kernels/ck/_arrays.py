"""Memory of an array, as a library needs it: NumPy's for host memory, PyTorch's for either. Imports NumPy alone."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import torch


def operand_elements(dtype: str, arch: str) -> tuple[str, ...]:
    """Return the element types that hold a target's operands; integers hold the bits of types that NumPy lacks."""
    if dtype == "fp8":
        return fp8_element(arch), "uint8"
    return {"fp16": ("float16",), "bf16": ("bfloat16", "uint16")}[dtype]


def result_elements(dtype: str, arch: str) -> tuple[str, ...]:
    """Return the element types that hold a target's result."""
    return ("float16",) if dtype == "fp8" else operand_elements(dtype, arch)


def fp8_element(arch: str) -> str:
    """Return the e4m3 type that an arch multiplies: gfx942's has another bias and no negative zero."""
    return "float8_e4m3fnuz" if arch == "gfx942" else "float8_e4m3fn"


@dataclass(slots=True)
class ArrayInfo:
    """Location and form of an array's memory.

    Attributes:
        pointer: address of its first element.
        shape: its sizes.
        element: the element type's name in NumPy and PyTorch.
        place: ``host``, or the device's name in PyTorch.
        contiguous: whether it is stored row by row, without gaps.
        writeable: whether a result may be written to it.
    """

    pointer: int
    shape: tuple[int, ...]
    element: str
    place: str
    contiguous: bool
    writeable: bool = True


def array_info(value: object) -> ArrayInfo | None:
    """Return the memory of a NumPy array or PyTorch tensor; None for any other value."""
    if isinstance(value, np.ndarray):
        flags = value.flags
        element = _name_of(value.dtype)
        return ArrayInfo(value.ctypes.data, value.shape, element, "host", flags.c_contiguous, flags.writeable)
    if not hasattr(value, "data_ptr"):
        return None
    tensor: torch.Tensor = value
    place = "host" if tensor.device.type == "cpu" else str(tensor.device)
    return ArrayInfo(tensor.data_ptr(), tuple(tensor.shape), _name_of(tensor.dtype), place, tensor.is_contiguous())


@cache
def _name_of(dtype: np.dtype[Any] | torch.dtype) -> str:
    """Return the name of NumPy's or PyTorch's element type; it includes a foreign byte order."""
    return str(dtype).removeprefix("torch.")


def empty_result(shape: tuple[int, ...], dtype: str, like: Any) -> Any:
    """Allocate a result for operands of type `dtype`: of the kind and in the place of the operand `like`."""
    if isinstance(like, np.ndarray):
        return np.empty(shape, dtype=np.float16 if dtype == "fp8" else like.dtype)
    if dtype != "fp8":
        return like.new_empty(shape)
    import torch  # loaded already: `like` is one of its tensors

    return like.new_empty(shape, dtype=torch.float16)

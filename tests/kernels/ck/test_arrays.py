"""What a library is told of an array, NumPy's and PyTorch's alike."""

from __future__ import annotations

import numpy as np
import pytest

from tilewise.kernels.ck.arrays import Array, array_of, empty, operand_elements, result_elements

torch = pytest.importorskip("torch")


def test_both_libraries_describe_the_same_memory() -> None:
    tensor = torch.arange(12, dtype=torch.float16).reshape(3, 4)
    array = tensor.numpy()
    assert array_of(tensor) == array_of(array) == Array(tensor.data_ptr(), (3, 4), "float16", "host", True)
    turned, sliced = array_of(tensor.T), array_of(array[:, 1:])
    assert turned is not None
    assert sliced is not None
    assert (turned.contiguous, sliced.contiguous, sliced.pointer) == (False, False, tensor.data_ptr() + 2)
    array.flags.writeable = False
    kept = array_of(array)
    assert kept is not None
    assert not kept.writeable
    assert array_of([1, 2]) is None
    swapped = array_of(np.zeros(3, dtype=">f2"))
    assert swapped is not None
    assert swapped.element not in operand_elements("fp16", "gfx942")


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp8"])
def test_an_empty_result_is_one_that_is_taken(dtype: str, arch: str) -> None:
    """Of the operand's kind; each element type is one that PyTorch or NumPy has."""
    for element in operand_elements(dtype, arch):
        operands = [torch.zeros(4).to(getattr(torch, element))]
        if hasattr(np, element):
            operands.append(np.zeros(4, element))
        for operand in operands:
            result = empty((2, 3), dtype, operand)
            made = array_of(result)
            assert type(result) is type(operand)
            assert made is not None
            assert (made.shape, made.element in result_elements(dtype, arch)) == ((2, 3), True)

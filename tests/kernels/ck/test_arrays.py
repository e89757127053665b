"""The memory of NumPy's arrays and of PyTorch's tensors is described alike."""

from __future__ import annotations

import numpy as np
import pytest

from tilewise.kernels.ck import ArrayInfo, array_info, empty_result, operand_elements, result_elements

torch = pytest.importorskip("torch")


def test_both_libraries_describe_the_same_memory() -> None:
    tensor = torch.arange(12, dtype=torch.float16).reshape(3, 4)
    array = tensor.numpy()
    assert array_info(tensor) == array_info(array) == ArrayInfo(tensor.data_ptr(), (3, 4), "float16", "host", True)
    turned, sliced = array_info(tensor.T), array_info(array[:, 1:])
    assert turned is not None
    assert sliced is not None
    assert (turned.contiguous, sliced.contiguous, sliced.pointer) == (False, False, tensor.data_ptr() + 2)
    array.flags.writeable = False
    kept = array_info(array)
    assert kept is not None
    assert not kept.writeable
    assert array_info([1, 2]) is None
    swapped = array_info(np.zeros(3, dtype=">f2"))
    assert swapped is not None
    assert swapped.element not in operand_elements("fp16", "gfx942")


@pytest.mark.parametrize("arch", ["gfx942", "gfx950"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16", "fp8"])
def test_an_empty_result_is_one_that_is_taken(dtype: str, arch: str) -> None:
    """The result has the operand's kind; PyTorch or NumPy has each element type."""
    for element in operand_elements(dtype, arch):
        operands = [torch.zeros(4).to(getattr(torch, element))]
        if hasattr(np, element):
            operands.append(np.zeros(4, element))
        for operand in operands:
            result = empty_result((2, 3), dtype, operand)
            made = array_info(result)
            assert type(result) is type(operand)
            assert made is not None
            assert (made.shape, made.element in result_elements(dtype, arch)) == ((2, 3), True)

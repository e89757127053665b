"""Descriptors of tensors (TMA), encoded once for each place in memory.

Triton encodes the descriptors of a kernel in every launch, which takes the host longer than the launch itself. Networks
use the same memory again and again, so that what was encoded can be kept. It is Triton's own encoding; a Triton whose
launcher is built otherwise encodes in every launch, as before.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

if TYPE_CHECKING:
    from triton.compiler import CompiledKernel

_MAX_ENCODED = 64  # per argument

Encode = Callable[[TensorDescriptor], Sequence[object]]  # descriptor -> arguments of a launch


def launch_of(compiled: CompiledKernel) -> tuple[Callable[..., None], Callable[[int], Encode]]:
    """Return the launch of a loaded kernel, and how it takes a descriptor, by its number among the descriptors."""
    run = compiled.run
    wrapped = getattr(run, "launch", None)
    below = inspect.getclosurevars(wrapped).nonlocals.get("launcher") if inspect.isfunction(wrapped) else None
    if below is None:  # no descriptors, or another Triton
        return run, lambda number: lambda descriptor: [descriptor]
    from triton.backends.nvidia.driver import make_tensordesc_arg

    encoding, kinds = copy.copy(run), compiled.metadata.tensordesc_meta
    encoding.launch = below

    def encode_of(number: int) -> Encode:
        kind = kinds[number] if kinds else None  # none for a kernel that reads without TMA
        return lambda descriptor: make_tensordesc_arg(descriptor, kind)

    return encoding, encode_of


class EncodedDescriptors:
    """The descriptors of one argument by pointer; they hold no memory.

    Args:
        role: index of the argument's pointer.
        offset: bytes from there to the first that the descriptor describes.
        template: a descriptor of the same shape, strides and block.
        encode: returns the arguments of a launch for a descriptor.
    """

    def __init__(self, role: int, offset: int, template: TensorDescriptor, encode: Encode) -> None:
        self._role, self._offset, self._template, self._encode = role, offset, template, encode
        self._by_pointer: dict[int, Sequence[object]] = {}

    def __call__(self, pointers: Sequence[int]) -> Sequence[object]:
        """Return the arguments of a launch for the pointers of all roles."""
        pointer = pointers[self._role]
        encoded = self._by_pointer.get(pointer)
        if encoded is None:
            t = self._template
            memory = _Memory(pointer + self._offset, t.base.dtype)
            encoded = self._encode(TensorDescriptor(memory, t.shape, t.strides, t.block_shape))
            if len(self._by_pointer) >= _MAX_ENCODED:
                self._by_pointer.clear()
            self._by_pointer[pointer] = encoded
        return encoded


class _Memory:
    """The parts of a tensor that a descriptor reads."""

    def __init__(self, pointer: int, dtype: torch.dtype) -> None:
        self._pointer, self.dtype = pointer, dtype

    def data_ptr(self) -> int:
        return self._pointer

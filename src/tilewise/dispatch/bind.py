"""A kernel bound to a problem and a device: a call passes tensors and launches, everything else is in place."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from tilewise.kernels.kernel import Kernel
from tilewise.kernels.triton.family import Family
from tilewise.kernels.triton.program import (
    POINTER_ALIGNMENT,
    RESULT_TYPES,
    Launch,
    launch_all,
    load_program,
)
from tilewise.kernels.triton.tensors import TORCH_TYPES
from tilewise.ops import Problem

Bound = Callable[[Sequence[torch.Tensor], torch.Tensor], None]  # (operands, result): launches on the current stream

_MAX_DESCRIPTORS = 64  # that an argument keeps: networks come back to the same memory


def interpreted_launches(family: Family, kernel: Kernel, problem: Problem, dtype: str, device: int) -> Bound:
    """Launches through Triton's interpreter, on tensors of the CPU."""
    elements = family.workspace_elements(kernel, problem)

    def run(operands: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        shaped = [o.reshape(shape) for o, shape in zip(operands, family.operands(problem), strict=True)]
        workspace = torch.empty(elements, dtype=torch.float32)
        result = out.view(family.result(problem))
        launch_all(family.launches(kernel, problem, dtype, *shaped, result, workspace))

    return run


def loaded_launches(family: Family, kernel: Kernel, problem: Problem, dtype: str, device: int) -> Bound:
    """Launches of a kernel that is compiled and loaded on a CUDA device.

    Raises:
        Exception: whatever Triton or the driver raises where it cannot be compiled or loaded.
    """
    elements = family.workspace_elements(kernel, problem)
    with torch.cuda.device(device):
        # stand-ins have shapes and strides but no memory: where they come back, a call's pointers go
        roles = [torch.empty(shape, dtype=TORCH_TYPES[dtype], device="meta") for shape in family.operands(problem)]
        roles.append(torch.empty(family.result(problem), dtype=TORCH_TYPES[RESULT_TYPES[dtype]], device="meta"))
        roles.append(torch.empty(elements, dtype=torch.float32, device="meta"))
        steps = tuple(_step(item, roles, device) for item in family.launches(kernel, problem, dtype, *roles))
    place = torch.device("cuda", device)
    current_device, current_stream = torch.cuda.current_device, triton.runtime.driver.active.get_current_stream

    def run(operands: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        pointers = [t.data_ptr() for t in operands]
        pointers.append(out.data_ptr())
        for pointer in pointers:
            if pointer % POINTER_ALIGNMENT:
                return _aligned(run, operands, out)
        if current_device() != device:
            with torch.cuda.device(device):
                return run(operands, out)
        workspace = torch.empty(elements, dtype=torch.float32, device=place) if elements else None
        pointers.append(0 if workspace is None else workspace.data_ptr())
        stream = current_stream(device)
        for step in steps:
            step(stream, pointers)

    return run


def _aligned(run: Bound, operands: Sequence[torch.Tensor], out: torch.Tensor) -> None:
    """Run on copies of what does not begin where the widest loads and stores may."""
    copies = [o.clone() if o.data_ptr() % POINTER_ALIGNMENT else o for o in operands]
    if out.data_ptr() % POINTER_ALIGNMENT == 0:
        return run(copies, out)
    result = torch.empty_like(out)
    run(copies, result)
    out.copy_(result)


def _step(item: Launch, roles: Sequence[torch.Tensor], device: int) -> Callable[[int, list[int]], None]:
    """One launch of the kernel, to be called with a stream and the pointers of all roles."""
    compiled = load_program(item.program, device)
    launch, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    x, y, z = item.grid
    rest = (*item.sizes, *(value for _, value in item.program.constants))
    arguments = [_argument(tensor, roles) for tensor in item.tensors]
    plain = [argument for argument in arguments if isinstance(argument, int)]
    if len(plain) == len(arguments):

        def step(stream: int, pointers: list[int]) -> None:
            launch(x, y, z, stream, function, metadata, None, None, None, *[pointers[i] for i in plain], *rest)

    else:

        def step(stream: int, pointers: list[int]) -> None:
            given = [pointers[a] if isinstance(a, int) else a(pointers) for a in arguments]
            launch(x, y, z, stream, function, metadata, None, None, None, *given, *rest)

    return step


def _argument(tensor: Any, roles: Sequence[torch.Tensor]) -> int | Callable[[list[int]], TensorDescriptor]:
    """The role whose pointer an argument is, or what makes the descriptor that it is."""
    described = isinstance(tensor, TensorDescriptor)
    base = tensor.base if described else tensor
    role = next(i for i, candidate in enumerate(roles) if candidate is base)
    return _Descriptors(role, tensor) if described else role


class _Descriptors:
    """The descriptors of one argument by pointer; they hold no memory."""

    def __init__(self, role: int, template: TensorDescriptor) -> None:
        self._role, self._template = role, template
        self._made: dict[int, TensorDescriptor] = {}

    def __call__(self, pointers: Sequence[int]) -> TensorDescriptor:
        pointer = pointers[self._role]
        made = self._made.get(pointer)
        if made is None:
            t = self._template
            made = TensorDescriptor(_Memory(pointer, t.base.dtype), t.shape, t.strides, t.block_shape)
            if len(self._made) >= _MAX_DESCRIPTORS:
                self._made.clear()
            self._made[pointer] = made
        return made


class _Memory:
    """What a descriptor asks of a tensor."""

    def __init__(self, pointer: int, dtype: torch.dtype) -> None:
        self._pointer, self.dtype = pointer, dtype

    def data_ptr(self) -> int:
        return self._pointer

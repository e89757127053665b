"""Kernels bound to a problem and a device, so that a call only passes tensors and launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from tilewise.kernels.triton import Kernel
from tilewise.kernels.triton.programs import (
    POINTER_ALIGNMENT,
    RESULT_TYPES,
    TORCH_TYPES,
    Family,
    Launch,
    launch_all,
    load_program,
)
from tilewise.kernels.vendor import VendorCall, bind_call
from tilewise.ops import Problem

BoundKernel = Callable[[Sequence[torch.Tensor], torch.Tensor], None]  # (operands, result): launch on current stream

_MAX_DESCRIPTORS = 64  # kept per argument, because networks reuse the same memory


def interpreted_launches(family: Family, kernel: Kernel, problem: Problem, dtype: str, device: int) -> BoundKernel:
    """Return a function that runs the kernel in Triton's interpreter, on CPU tensors.

    Args:
        family: of the kernel.
        kernel: the kernel.
        problem: to run.
        dtype: of the operands.
        device: ignored.
    """
    elements = family.workspace_elements(kernel, problem)

    def run(operands: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        shaped = [o.reshape(shape) for o, shape in zip(operands, family.operands(problem), strict=True)]
        workspace = torch.empty(elements, dtype=torch.float32)
        result = out.view(family.result(problem))
        launch_all(family.launches(kernel, problem, dtype, *shaped, result, workspace))

    return run


def loaded_launches(family: Family, kernel: Kernel, problem: Problem, dtype: str, device: int) -> BoundKernel:
    """Compile and load a kernel, and return a function that launches it on a CUDA device.

    Args:
        family: of the kernel.
        kernel: the kernel.
        problem: to run.
        dtype: of the operands.
        device: index of the CUDA device.

    Raises:
        Exception: any error of Triton or the driver while compiling or loading.
    """
    elements = family.workspace_elements(kernel, problem)
    with torch.cuda.device(device):
        # Meta tensors have shapes and strides but no memory: as arguments they mark the pointers to fill in.
        roles = [torch.empty(shape, dtype=TORCH_TYPES[dtype], device="meta") for shape in family.operands(problem)]
        roles.append(torch.empty(family.result(problem), dtype=TORCH_TYPES[RESULT_TYPES[dtype]], device="meta"))
        roles.append(torch.empty(elements, dtype=torch.float32, device="meta"))
        steps = tuple(_bind_step(item, roles, device) for item in family.launches(kernel, problem, dtype, *roles))
    place = torch.device("cuda", device)
    current_device, current_stream = torch.cuda.current_device, triton.runtime.driver.active.get_current_stream

    def run(operands: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        pointers = [t.data_ptr() for t in operands]
        pointers.append(out.data_ptr())
        for pointer in pointers:
            if pointer % POINTER_ALIGNMENT:
                return _run_aligned(run, operands, out)
        if current_device() != device:
            with torch.cuda.device(device):
                return run(operands, out)
        workspace = torch.empty(elements, dtype=torch.float32, device=place) if elements else None
        pointers.append(0 if workspace is None else workspace.data_ptr())
        stream = current_stream(device)
        for step in steps:
            step(stream, pointers)

    return run


class VendorLaunch:
    """A call of the vendor's library for a problem; it allocates its result, so a given tensor costs a copy.

    Attributes:
        returns: computes the result of operands.
    """

    def __init__(self, call: VendorCall, problem: Problem, variant: str) -> None:
        self.returns = bind_call(call, problem, variant)

    def __call__(self, operands: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        """Compute into `out` on the current stream."""
        out.copy_(self.returns(operands))


def _run_aligned(run: BoundKernel, operands: Sequence[torch.Tensor], out: torch.Tensor) -> None:
    """Run on copies of the tensors that are not aligned for the widest loads and stores."""
    copies = [o.clone() if o.data_ptr() % POINTER_ALIGNMENT else o for o in operands]
    if out.data_ptr() % POINTER_ALIGNMENT == 0:
        return run(copies, out)
    result = torch.empty_like(out)
    run(copies, result)
    out.copy_(result)


def _bind_step(item: Launch, roles: Sequence[torch.Tensor], device: int) -> Callable[[int, list[int]], None]:
    """Return one launch of a kernel as a function of a stream and the pointers of all roles."""
    compiled = load_program(item.program, device)
    launch, function, metadata = compiled.run, compiled.function, compiled.packed_metadata
    x, y, z = item.grid
    rest = (*item.sizes, *(value for _, value in item.program.constants))
    arguments = [_bind_argument(tensor, roles) for tensor in item.tensors]
    plain = [argument for argument in arguments if isinstance(argument, int)]
    if len(plain) == len(arguments):

        def step(stream: int, pointers: list[int]) -> None:
            launch(x, y, z, stream, function, metadata, None, None, None, *[pointers[i] for i in plain], *rest)

    else:

        def step(stream: int, pointers: list[int]) -> None:
            values = [pointers[a] if isinstance(a, int) else a(pointers) for a in arguments]
            launch(x, y, z, stream, function, metadata, None, None, None, *values, *rest)

    return step


def _bind_argument(
    tensor: torch.Tensor | TensorDescriptor, roles: Sequence[torch.Tensor]
) -> int | Callable[[list[int]], TensorDescriptor]:
    """Return the index of the role whose pointer an argument is, or a function that makes its descriptor."""
    is_descriptor = isinstance(tensor, TensorDescriptor)
    base = tensor.base if is_descriptor else tensor
    role = next(i for i, candidate in enumerate(roles) if candidate is base)
    return _Descriptors(role, tensor) if is_descriptor else role


class _Descriptors:
    """The descriptors of one argument by pointer; they hold no memory."""

    def __init__(self, role: int, template: TensorDescriptor) -> None:
        self._role, self._template = role, template
        self._by_pointer: dict[int, TensorDescriptor] = {}

    def __call__(self, pointers: Sequence[int]) -> TensorDescriptor:
        pointer = pointers[self._role]
        descriptor = self._by_pointer.get(pointer)
        if descriptor is None:
            t = self._template
            descriptor = TensorDescriptor(_Memory(pointer, t.base.dtype), t.shape, t.strides, t.block_shape)
            if len(self._by_pointer) >= _MAX_DESCRIPTORS:
                self._by_pointer.clear()
            self._by_pointer[pointer] = descriptor
        return descriptor


class _Memory:
    """The parts of a tensor that a descriptor reads."""

    def __init__(self, pointer: int, dtype: torch.dtype) -> None:
        self._pointer, self.dtype = pointer, dtype

    def data_ptr(self) -> int:
        return self._pointer

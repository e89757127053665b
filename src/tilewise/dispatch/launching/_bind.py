"""Kernels bound to a problem and a device, so that a call only passes tensors and launches."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import torch
import triton
from triton.tools.tensor_descriptor import TensorDescriptor

from tilewise.dispatch.launching._descriptors import EncodedDescriptors, launch_of
from tilewise.errors import one_line
from tilewise.kernels import STORED_FORMATS, Epilogue, EpilogueKind, Shape, stored_views, torch_sizes, torch_views
from tilewise.kernels.triton import Kernel
from tilewise.kernels.triton.programs import (
    POINTER_ALIGNMENT,
    RESULT_TYPES,
    TORCH_TYPES,
    Family,
    Launch,
    interpreted,
    launch_all,
    load_program,
    pass_launch,
)
from tilewise.kernels.vendor import BoundCall, VendorCall, as_stored, bind_torch_call, leaves
from tilewise.ops import GemmProblem, Problem, Target

# (operands, then the bias and the residual of an epilogue; result): launch on the current stream
BoundKernel = Callable[[Sequence[torch.Tensor], torch.Tensor], None]
# The same tensors as PyTorch has them, without a depth axis in a 2D convolution -> a new result, as PyTorch has it.
DirectCall = Callable[[Sequence[torch.Tensor]], torch.Tensor]

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Request:
    """A problem of a target to bind a kernel for.

    Attributes:
        family: of the target's kernels.
        target: the target.
        problem: the problem.
        kind: of the epilogue.
        device: index of the CUDA device; ignored by the interpreter.
    """

    family: Family
    target: Target
    problem: Problem
    kind: EpilogueKind
    device: int

    @property
    def dtype(self) -> str:
        """Type of the operands."""
        return self.target.dtype

    @property
    def result_shape(self) -> Shape:
        """Shape of the result, with all axes."""
        return self.family.result(self.problem)

    @property
    def result_dtype(self) -> torch.dtype:
        """Type of the result, the bias and the residual."""
        return TORCH_TYPES[RESULT_TYPES[self.dtype]]

    def epilogue_of(self, ends: Sequence[torch.Tensor]) -> Epilogue:
        """Return the epilogue of these tensors: the bias and the residual, as far as there are such."""
        rest = list(ends)
        bias = rest.pop(0) if self.kind.has_bias else None
        return Epilogue(bias, rest.pop(0) if self.kind.has_residual else None, self.kind.activation or None)


def interpreted_launches(request: Request, kernel: Kernel) -> BoundKernel:
    """Return a function that runs the kernel in Triton's interpreter, on CPU tensors."""
    family, problem = request.family, request.problem
    elements, shapes = family.workspace_elements(kernel, problem), family.operands(problem)

    def run(operands: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        shaped = [o.reshape(shape) for o, shape in zip(operands, shapes, strict=False)]
        workspace = torch.empty(elements, dtype=torch.float32)
        epilogue = request.epilogue_of(operands[len(shapes) :])
        result = out.view(request.result_shape)
        launch_all(family.launches(kernel, problem, request.dtype, *shaped, result, workspace, epilogue=epilogue))

    return run


def loaded_launches(request: Request, kernel: Kernel) -> BoundKernel:
    """Compile and load a kernel, and return a function that launches it on the CUDA device.

    Raises:
        Exception: any error of Triton or the driver while compiling or loading.
    """
    family, problem = request.family, request.problem
    elements = family.workspace_elements(kernel, problem)
    operands = [_role(shape, TORCH_TYPES[request.dtype]) for shape in family.operands(problem)]
    ends = _end_roles(request)
    result, workspace = _role(request.result_shape, request.result_dtype), _role((elements,), torch.float32)
    with torch.cuda.device(request.device):
        launches = family.launches(
            kernel, problem, request.dtype, *operands, result, workspace, epilogue=request.epilogue_of(ends)
        )
        return _loaded(launches, [*operands, *ends, result, workspace], request.device)


def followed_by_pass(launch: BoundKernel, request: Request) -> BoundKernel:
    """Return the launch of a kernel that computes no epilogue, with the pass that does it."""
    end, count = bound_pass(request), len(request.family.tensors) - 1

    def run(operands: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        launch(operands[:count], out)
        end(operands[count:], out)

    return run


def direct_call(request: Request, launch: BoundKernel) -> DirectCall:
    """Return the launch of a kernel as a function of tensors as PyTorch has them, which are not checked.

    A convolution's tensors must be stored channels-last, a product's as its layout says, and all without gaps.
    """
    if isinstance(launch, VendorLaunch):
        return launch.direct
    problem, dtype = request.problem, request.result_dtype
    if interpreted():

        def run_interpreted(operands: Sequence[torch.Tensor]) -> torch.Tensor:
            out = torch.empty(request.result_shape, dtype=dtype)
            launch(stored_views(problem, operands), out)
            # no view to autograd, as on a GPU
            return out if isinstance(problem, GemmProblem) else torch_views(problem, [out])[0].data

        return run_interpreted
    sizes, device = torch_sizes(problem, request.result_shape), torch.device("cuda", request.device)
    strides = torch.empty(sizes, device="meta", memory_format=STORED_FORMATS[len(sizes)]).stride()

    def run(operands: Sequence[torch.Tensor]) -> torch.Tensor:
        out = torch.empty_strided(sizes, strides, dtype=dtype, device=device)
        launch(operands, out)  # it takes the pointers only
        return out

    return run


def bound_pass(request: Request) -> BoundKernel:
    """Return the pass that computes an epilogue on a stored result: its operands are the bias and the residual."""
    channels = request.result_shape[-1]
    if interpreted():

        def run(ends: Sequence[torch.Tensor], out: torch.Tensor) -> None:
            launch_all([pass_launch(request.epilogue_of(ends), request.dtype, out, channels)])

        return run
    ends, result = _end_roles(request), _role(request.result_shape, request.result_dtype)
    with torch.cuda.device(request.device):
        launch = pass_launch(request.epilogue_of(ends), request.dtype, result, channels)
        return _loaded([launch], [*ends, result, _role((0,), torch.float32)], request.device)


def _role(shape: Shape, dtype: torch.dtype) -> torch.Tensor:
    """Return a tensor with shape and strides but no memory: as an argument it marks the pointer to fill in."""
    return torch.empty(shape, dtype=dtype, device="meta")


def _end_roles(request: Request) -> list[torch.Tensor]:
    shapes = [(request.result_shape[-1],)] * request.kind.has_bias + [request.result_shape] * request.kind.has_residual
    return [_role(shape, request.result_dtype) for shape in shapes]


def _loaded(launches: Iterable[Launch], roles: Sequence[torch.Tensor], device: int) -> BoundKernel:
    """Return the launches as one function; the last two roles are the result and the workspace."""
    elements = roles[-1].numel()
    steps = tuple(_bind_step(item, roles, device) for item in launches)
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

    The library may have no kernel for the part of an epilogue that its call could compute. From then on the plain call
    is made, and a pass computes the epilogue, as it does for all that a call leaves.
    """

    def __init__(self, request: Request, call: VendorCall) -> None:
        self._request, self._call = request, call
        self._operands = len(request.family.tensors) - 1
        self.returns = as_stored(self.direct, request.problem)  # the same for tensors as kernels read them
        self._bound = self._leaving(leaves(call, request.problem, request.target, request.kind))

    def _leaving(self, left: EpilogueKind) -> tuple[EpilogueKind, BoundCall, BoundKernel | None]:
        """Return the part of the epilogue that the call computes, the call, and the pass for the part left."""
        kind = self._request.kind
        part = kind if left.is_empty else EpilogueKind(kind.has_bias and not left.has_bias)
        compute = bind_torch_call(self._call, self._request.problem, self._request.target.variant, part)
        return part, compute, None if left.is_empty else bound_pass(replace(self._request, kind=left))

    def direct(self, operands: Sequence[torch.Tensor]) -> torch.Tensor:
        """Compute the result of operands and the tensors of the epilogue, all as PyTorch has them."""
        part, compute, end = self._bound
        taken = self._operands + part.has_bias + part.has_residual
        try:
            result = compute(operands[:taken])
        except RuntimeError as e:
            if part.is_empty or isinstance(e, torch.OutOfMemoryError):
                raise
            _log.info("%s has no kernel with %s: %s", self._call.config, part, one_line(e))
            self._bound = self._leaving(self._request.kind)
            return self.direct(operands)
        if end is not None:
            end(operands[taken:], result)
        return result

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
    function, metadata, (launch, encode_of) = compiled.function, compiled.packed_metadata, launch_of(compiled)
    x, y, z = item.grid
    rest = (*item.sizes, *(value for _, value in item.program.constants))
    numbers = itertools.count()
    arguments = [
        EncodedDescriptors(*_place_of(t.base, roles), t, encode_of(next(numbers)))
        if isinstance(t, TensorDescriptor)
        else _role_of(t, roles)
        for t in item.tensors
    ]
    plain = [argument for argument in arguments if isinstance(argument, int)]
    if len(plain) == len(arguments):

        def step(stream: int, pointers: list[int]) -> None:
            launch(x, y, z, stream, function, metadata, None, None, None, *[pointers[i] for i in plain], *rest)

    else:

        def step(stream: int, pointers: list[int]) -> None:
            values: list[object] = []
            for a in arguments:
                if isinstance(a, int):
                    values.append(pointers[a])
                else:
                    values += a(pointers)
            launch(x, y, z, stream, function, metadata, None, None, None, *values, *rest)

    return step


def _role_of(tensor: torch.Tensor | None, roles: Sequence[torch.Tensor]) -> int:
    """Return the index of the role whose pointer an argument is; a view of its beginning may have another type."""
    if tensor is None:  # a constant of the binary, whose value in a launch is not read
        return len(roles) - 1
    role, offset = _place_of(tensor, roles)
    if offset:
        raise ValueError(f"a launch takes the pointer of role {role} {offset} bytes from its beginning")
    return role


def _place_of(tensor: torch.Tensor, roles: Sequence[torch.Tensor]) -> tuple[int, int]:
    """Return the index of the role that a tensor is or lies in, and the bytes of the role before it."""
    memory = tensor.untyped_storage()  # in inference mode a view does not know its base
    role = next(i for i, candidate in enumerate(roles) if candidate.untyped_storage() is memory)
    return role, tensor.storage_offset() * tensor.element_size()

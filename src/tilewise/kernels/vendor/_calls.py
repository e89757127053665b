"""Calls of the vendor's library through PyTorch.

Convolutions are PyTorch's own, so PyTorch decides between cuDNN and its kernels for depthwise filters, as it does for
its users. Only cuDNN's benchmark mode is set, and set back, around a call. The calls that compute a part of an
epilogue, see :func:`~tilewise.kernels.vendor.leaves`, are PyTorch's too.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from tilewise.errors import KernelError
from tilewise.kernels._epilogue import EMPTY_KIND, EpilogueKind
from tilewise.kernels._layouts import stored_views, torch_sizes, torch_views
from tilewise.kernels._memory_formats import STORED_FORMATS
from tilewise.kernels.vendor._backend import SCALED, VendorCall
from tilewise.ops import GemmProblem, GroupedConvProblem, Problem

# operands, followed by the bias and the residual of the epilogue's part -> result, on the current stream
BoundCall = Callable[[Sequence[torch.Tensor]], torch.Tensor]


def bind_call(call: VendorCall, problem: Problem, variant: str, part: EpilogueKind = EMPTY_KIND) -> BoundCall:
    """Return a function that computes `problem` by a call of the vendor's library, with a part of an epilogue.

    Its operands and its result have the shapes of :data:`tilewise.kernels.TENSORS`; those of a 2D convolution may omit
    the depth axis, as the result then does. `part` is one that :func:`~tilewise.kernels.vendor.leaves` does not leave.

    Raises:
        KernelError: there is no such call for the op or variant.
    """
    return as_stored(bind_torch_call(call, problem, variant, part), problem)


def bind_torch_call(call: VendorCall, problem: Problem, variant: str, part: EpilogueKind = EMPTY_KIND) -> BoundCall:
    """Return :func:`bind_call` for tensors as PyTorch has them; the result of a convolution is stored channels-last.

    Raises:
        KernelError: there is no such call for the op or variant.
    """
    if isinstance(problem, GemmProblem):
        return _scaled_product() if call.algorithm == SCALED else _product(call, part)
    if isinstance(problem, GroupedConvProblem) and variant in _CONVOLUTIONS:
        fused = not part.is_empty
        return _in_benchmark_mode(_fused_forward(problem, part) if fused else _CONVOLUTIONS[variant](problem))
    raise KernelError(f"{call.config} computes no {problem.op} {variant}")


def as_stored(compute: BoundCall, problem: Problem) -> BoundCall:
    """Return a call on tensors as PyTorch has them as one on tensors as kernels read them."""
    if isinstance(problem, GemmProblem):
        return lambda operands: compute(torch_views(problem, operands))

    def run(operands: Sequence[torch.Tensor]) -> torch.Tensor:
        (y,) = stored_views(problem, [compute(torch_views(problem, operands))])
        has_depth_of_one = operands[0].dim() > y.dim()
        return y.unsqueeze(1) if has_depth_of_one else y

    return run


def _scaled_product() -> BoundCall:
    ones: dict[torch.device, torch.Tensor] = {}

    def scaled(operands: Sequence[torch.Tensor]) -> torch.Tensor:
        a, b, *bias = operands
        one = ones.get(a.device)
        if one is None:
            one = ones[a.device] = torch.ones((), device=a.device)
        added = bias[0] if bias else None
        return torch._scaled_mm(a, b, one, one, bias=added, out_dtype=torch.bfloat16, use_fast_accum=True)

    return scaled


def _product(call: VendorCall, part: EpilogueKind) -> BoundCall:
    def multiply(a: torch.Tensor, b: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
        if not bias:
            return torch.mm(a, b)
        if not part.activation:
            return torch.addmm(*bias, a, b)
        return torch._addmm_activation(*bias, a, b, use_gelu=part.activation == "gelu_tanh")

    def product(operands: Sequence[torch.Tensor]) -> torch.Tensor:
        preferred = torch.backends.cuda.preferred_blas_library()
        torch.backends.cuda.preferred_blas_library(call.algorithm)
        try:
            return multiply(*operands)
        finally:
            torch.backends.cuda.preferred_blas_library(preferred)

    return product


def _in_benchmark_mode(compute: BoundCall) -> BoundCall:
    def run(operands: Sequence[torch.Tensor]) -> torch.Tensor:
        if torch.backends.cudnn.benchmark:
            return compute(operands)
        torch.backends.cudnn.benchmark = True
        try:
            return compute(operands)
        finally:
            torch.backends.cudnn.benchmark = False

    return run


def _forward(p: GroupedConvProblem) -> BoundCall:
    stride, pad, dilation, none = _geometry(p)

    def run(operands: Sequence[torch.Tensor]) -> torch.Tensor:
        return _last(torch.convolution(*operands, None, stride, pad, dilation, False, none, p.G))

    return run


def _fused_forward(p: GroupedConvProblem, part: EpilogueKind) -> BoundCall:
    """Return cuDNN's convolution with ReLU, after a bias and a residual if there are such."""
    stride, pad, dilation, _ = _geometry(p)

    def run(operands: Sequence[torch.Tensor]) -> torch.Tensor:
        x, w, *rest = operands
        bias = rest.pop(0) if part.has_bias else None
        if rest:
            y = torch.ops.aten.cudnn_convolution_add_relu(x, w, *rest, 1.0, bias, stride, pad, dilation, p.G)
        else:
            y = torch.ops.aten.cudnn_convolution_relu(x, w, bias, stride, pad, dilation, p.G)
        return _last(y)

    return run


def _backward(p: GroupedConvProblem, wanted: int) -> BoundCall:
    """Return the gradient of the input (0) or of the filter (1)."""
    stride, pad, dilation, none = _geometry(p)
    sizes = torch_sizes(p, ((p.N, p.Di, p.Hi, p.Wi, p.C), (p.K, p.Z, p.Y, p.X, p.C // p.G))[wanted])
    mask = [wanted == 0, wanted == 1, False]

    def run(operands: Sequence[torch.Tensor]) -> torch.Tensor:
        dy, other = operands
        # PyTorch reads its shape and strides only.
        absent = torch.empty(sizes, dtype=dy.dtype, device=dy.device, memory_format=STORED_FORMATS[len(sizes)])
        x, w = (absent, other) if wanted == 0 else (other, absent)
        found = torch.ops.aten.convolution_backward(dy, x, w, None, stride, pad, dilation, False, none, p.G, mask)
        return _last(found[wanted])

    return run


def _geometry(p: GroupedConvProblem) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return strides, padding, dilations and output padding, one value per spatial axis."""
    axes = "dhw"[3 - p.ndim :]
    stride, pad, dilation = ([getattr(p, f"{name}_{axis}") for axis in axes] for name in ("stride", "pad", "dilation"))
    return stride, pad, dilation, [0] * p.ndim


def _last(t: torch.Tensor) -> torch.Tensor:
    return t.contiguous(memory_format=STORED_FORMATS[t.dim()])


_CONVOLUTIONS: dict[str, Callable[[GroupedConvProblem], BoundCall]] = {
    "forward": _forward,
    "bwd_data": partial(_backward, wanted=0),
    "bwd_weight": partial(_backward, wanted=1),
}

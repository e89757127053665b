"""Calls of the vendor's library through PyTorch, on tensors in tilewise's layout.

Convolutions are PyTorch's own, so PyTorch decides between cuDNN and its kernels for depthwise filters, as it does for
its users. Only cuDNN's benchmark mode is set, and set back, around a call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import torch

from tilewise.errors import KernelError
from tilewise.kernels.vendor._backend import SCALED, VendorCall
from tilewise.ops import GemmProblem, GroupedConvProblem, Problem

BoundCall = Callable[[Sequence[torch.Tensor]], torch.Tensor]  # operands -> result, on the current stream


def bind_call(call: VendorCall, problem: Problem, variant: str) -> BoundCall:
    """Return a function that computes `problem` by a call of the vendor's library.

    Its operands and its result have the shapes of :data:`tilewise.kernels.TENSORS`; those of a 2D convolution may omit
    the depth axis, as the result then does.

    Raises:
        KernelError: there is no such call for the op or variant.
    """
    if isinstance(problem, GemmProblem):
        return _product(call, problem)
    if isinstance(problem, GroupedConvProblem) and variant in _CONVOLUTIONS:
        return _in_benchmark_mode(_CONVOLUTIONS[variant](problem))
    raise KernelError(f"{call.config} computes no {problem.op} {variant}")


def _product(call: VendorCall, p: GemmProblem) -> BoundCall:
    a_rows, b_rows = p.layout[0] == "r", p.layout[1] == "r"
    if call.algorithm == SCALED:
        ones: dict[torch.device, torch.Tensor] = {}

        def scaled(operands: Sequence[torch.Tensor]) -> torch.Tensor:
            a, b = operands
            one = ones.get(a.device)
            if one is None:
                one = ones[a.device] = torch.ones((), device=a.device)
            b = b if b_rows else b.T
            return torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

        return scaled

    def product(operands: Sequence[torch.Tensor]) -> torch.Tensor:
        a, b = operands
        preferred = torch.backends.cuda.preferred_blas_library()
        torch.backends.cuda.preferred_blas_library(call.algorithm)
        try:
            return torch.mm(a if a_rows else a.T, b if b_rows else b.T)
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
        flat = _is_flat(operands[0])
        x, w = (_channels_second(t, p.ndim) for t in operands)
        y = torch.convolution(x, w, None, stride, pad, dilation, False, none, p.G)
        return _channels_last(y, p.ndim, flat)

    return run


def _backward(p: GroupedConvProblem, wanted: int) -> BoundCall:
    """Return the gradient of the input (0) or of the filter (1)."""
    stride, pad, dilation, none = _geometry(p)
    shape = ((p.N, p.Di, p.Hi, p.Wi, p.C), (p.K, p.Z, p.Y, p.X, p.C // p.G))[wanted]
    mask = [wanted == 0, wanted == 1, False]

    def run(operands: Sequence[torch.Tensor]) -> torch.Tensor:
        flat = _is_flat(operands[0])
        dy, other = (_channels_second(t, p.ndim) for t in operands)
        absent = _channels_second(dy.new_empty(shape), p.ndim)  # PyTorch reads its shape and strides only
        x, w = (absent, other) if wanted == 0 else (other, absent)
        found = torch.ops.aten.convolution_backward(dy, x, w, None, stride, pad, dilation, False, none, p.G, mask)
        return _channels_last(found[wanted], p.ndim, flat)

    return run


def _geometry(p: GroupedConvProblem) -> tuple[list[int], list[int], list[int], list[int]]:
    """Return strides, padding, dilations and output padding, one value per spatial axis."""
    axes = "dhw"[3 - p.ndim :]
    stride, pad, dilation = ([getattr(p, f"{name}_{axis}") for axis in axes] for name in ("stride", "pad", "dilation"))
    return stride, pad, dilation, [0] * p.ndim


def _is_flat(t: torch.Tensor) -> bool:
    return bool(t.dim() == 4)


def _channels_second(t: torch.Tensor, ndim: int) -> torch.Tensor:
    """Return a view with the channels as second axis, without the depth axis of a 2D problem."""
    if ndim == 2:
        return (t if _is_flat(t) else t.squeeze(1)).permute(0, 3, 1, 2)
    return t.permute(0, 4, 1, 2, 3)


def _channels_last(t: torch.Tensor, ndim: int, flat: bool) -> torch.Tensor:
    """Return a contiguous tensor with the channels as last axis, and a depth axis unless `flat`."""
    if ndim == 2:
        t = t.permute(0, 2, 3, 1).contiguous()
        return t if flat else t.unsqueeze(1)
    return t.permute(0, 2, 3, 4, 1).contiguous()


_CONVOLUTIONS: dict[str, Callable[[GroupedConvProblem], BoundCall]] = {
    "forward": _forward,
    "bwd_data": partial(_backward, wanted=0),
    "bwd_weight": partial(_backward, wanted=1),
}

"""Calls of the vendor's libraries on tilewise's operands: cuBLAS for matrix products, cuDNN for convolution.

Each way to request the same work is a separate call; the fastest one represents the vendor.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from tilewise.errors import UsageError
from tilewise.kernels.triton.programs import TORCH_TYPES
from tilewise.ops import GemmProblem, GroupedConvProblem, Problem, Target

Call = Callable[[], torch.Tensor]


class VendorUnsupportedError(UsageError):
    """The vendor's library does not support this problem; the message states the reason."""


@dataclass(frozen=True)
class Vendor:
    """The vendor's calls for a problem, and the conversion of their result to tilewise's layout."""

    calls: dict[str, Call]
    to_ours: Callable[[torch.Tensor], torch.Tensor]
    backend: str  # the library that PyTorch chose, if known


def vendor_of(target: Target, problem: Problem, operands: Sequence[torch.Tensor]) -> Vendor:
    """Return the vendor's calls for a problem.

    Args:
        target: op, variant and dtype.
        problem: the problem.
        operands: those of :func:`tilewise.kernels.triton.programs.random_operands`.

    Raises:
        VendorUnsupportedError: the vendor has no call for the problem.
    """
    if isinstance(problem, GemmProblem):
        return _gemm(target.dtype, problem, operands)
    assert isinstance(problem, GroupedConvProblem)
    return _conv(target.variant, problem, operands)


def _gemm(dtype: str, p: GemmProblem, operands: Sequence[torch.Tensor]) -> Vendor:
    a = operands[0] if p.layout[0] == "r" else operands[0].T
    b = operands[1] if p.layout[1] == "r" else operands[1].T
    if dtype == "fp8":
        if p.layout != "rcr":
            raise VendorUnsupportedError(f"cuBLAS multiplies fp8 in layout rcr only, not {p.layout}")
        one = torch.ones((), device=a.device)

        def scaled() -> torch.Tensor:
            return torch._scaled_mm(a, b, one, one, out_dtype=torch.bfloat16, use_fast_accum=True)

        return Vendor({"cublaslt": scaled}, _same, "cublaslt")
    out = torch.empty(p.M, p.N, device=a.device, dtype=TORCH_TYPES[dtype])

    def by(library: str) -> Call:
        def product() -> torch.Tensor:
            torch.backends.cuda.preferred_blas_library(library)
            return torch.mm(a, b, out=out)

        return product

    return Vendor({name: by(name) for name in ("cublas", "cublaslt")}, _same, "cublas")


def _conv(variant: str, p: GroupedConvProblem, operands: Sequence[torch.Tensor]) -> Vendor:
    layout = torch.channels_last if p.ndim == 2 else torch.channels_last_3d
    axes = "dhw"[3 - p.ndim :]
    stride, pad, dilation = ([getattr(p, f"{n}_{a}") for a in axes] for n in ("stride", "pad", "dilation"))
    none = [0] * p.ndim

    def first(t: torch.Tensor) -> torch.Tensor:
        """Return a view with channels as the second axis; memory stays channels-last."""
        t = t.permute(0, 4, 1, 2, 3)
        return (t.squeeze(2) if p.ndim == 2 else t).contiguous(memory_format=layout)

    def to_ours(t: torch.Tensor) -> torch.Tensor:
        return (t.unsqueeze(2) if p.ndim == 2 else t).permute(0, 2, 3, 4, 1)

    def like(shape: Sequence[int]) -> torch.Tensor:
        return first(torch.zeros(tuple(shape), device=operands[0].device, dtype=operands[0].dtype))

    input_shape, filter_shape = (p.N, p.Di, p.Hi, p.Wi, p.C), (p.K, p.Z, p.Y, p.X, p.C // p.G)
    if variant == "forward":
        x, w = first(operands[0]), first(operands[1])
        backend = _backend(x, w, stride, pad, dilation, none, p.G)
        calls: dict[str, Call] = {
            "convolution": lambda: torch.ops.aten.convolution(x, w, None, stride, pad, dilation, False, none, p.G)
        }
        if "Cudnn" not in backend:  # PyTorch prefers its own kernel, so cuDNN is called explicitly, too
            calls["cudnn_convolution"] = lambda: torch.ops.aten.cudnn_convolution(
                x, w, pad, stride, dilation, p.G, True, False, True
            )
        return Vendor(calls, to_ours, backend)
    dy = first(operands[0])
    which = 0 if variant == "bwd_data" else 1
    other = first(operands[1])
    x, w = (like(input_shape), other) if which == 0 else (other, like(filter_shape))
    mask = [which == 0, which == 1, False]

    def backward() -> torch.Tensor:
        gradients = torch.ops.aten.convolution_backward(dy, x, w, None, stride, pad, dilation, False, none, p.G, mask)
        return gradients[which]

    return Vendor({"convolution_backward": backward}, to_ours, _backend(x, w, stride, pad, dilation, none, p.G))


def _backend(
    x: torch.Tensor,
    w: torch.Tensor,
    stride: Sequence[int],
    pad: Sequence[int],
    dilation: Sequence[int],
    none: Sequence[int],
    groups: int,
) -> str:
    """Return the library that PyTorch uses, e.g. ``Cudnn``; only a private function of PyTorch tells."""
    try:
        chosen = torch._C._select_conv_backend(x, w, None, stride, pad, dilation, False, none, groups, None)
    except (AttributeError, TypeError, RuntimeError):
        return "unknown"
    return str(chosen).rpartition(".")[2]


def _same(t: torch.Tensor) -> torch.Tensor:
    return t

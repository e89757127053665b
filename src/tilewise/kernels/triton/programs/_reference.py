"""The reference results, from PyTorch: kernels are checked against them in tests and before they are timed.

Operands narrower than fp32 are widened to it. fp64 operands give an fp64 result, for cases where fp32 is in doubt:
cuDNN may compute a convolution through transforms (Winograd, FFT) that cost it bits. fp32 stays fp32 only with
``torch.backends.cudnn.allow_tf32 = False`` and ``torch.backends.cuda.matmul.allow_tf32 = False``.
"""

from __future__ import annotations

import torch

from tilewise.ops import GemmProblem, GroupedConvProblem


def conv_forward(p: GroupedConvProblem, x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return ``conv(x, w)`` on widened operands.

    Args:
        p: the problem.
        x: (N, Di, Hi, Wi, C).
        w: (K, Z, Y, X, C / G).

    Returns:
        (N, Do, Ho, Wo, K), contiguous.
    """
    conv = torch.nn.functional.conv2d if p.ndim == 2 else torch.nn.functional.conv3d
    return _to_last(p, conv(_to_first(p, x), _to_first(p, w), None, *_geometry(p), p.G))


def conv_bwd_data(p: GroupedConvProblem, dy: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Return the gradient of ``conv(x, w)`` for x.

    Args:
        p: the problem.
        dy: (N, Do, Ho, Wo, K).
        w: (K, Z, Y, X, C / G).

    Returns:
        (N, Di, Hi, Wi, C), contiguous.
    """
    shape = (p.N, p.C, p.Di, p.Hi, p.Wi) if p.ndim == 3 else (p.N, p.C, p.Hi, p.Wi)
    gradient = torch.nn.grad.conv2d_input if p.ndim == 2 else torch.nn.grad.conv3d_input
    return _to_last(p, gradient(shape, _to_first(p, w), _to_first(p, dy), *_geometry(p), p.G))


def conv_bwd_weight(p: GroupedConvProblem, dy: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """Return the gradient of ``conv(x, w)`` for w.

    Args:
        p: the problem.
        dy: (N, Do, Ho, Wo, K).
        x: (N, Di, Hi, Wi, C).

    Returns:
        (K, Z, Y, X, C / G), contiguous.
    """
    shape = (p.K, p.C // p.G, p.Z, p.Y, p.X) if p.ndim == 3 else (p.K, p.C // p.G, p.Y, p.X)
    gradient = torch.nn.grad.conv2d_weight if p.ndim == 2 else torch.nn.grad.conv3d_weight
    return _to_last(p, gradient(_to_first(p, x), shape, _to_first(p, dy), *_geometry(p), p.G))


def gemm(p: GemmProblem, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """Return ``a @ b`` on widened operands.

    Args:
        p: the problem.
        a: (M, K), or (K, M) where the layout begins with ``c``.
        b: (K, N), or (N, K) where the layout's second letter is ``c``.

    Returns:
        (M, N), contiguous.
    """
    return _widened(a if p.layout[0] == "r" else a.T) @ _widened(b if p.layout[1] == "r" else b.T)


def _widened(t: torch.Tensor) -> torch.Tensor:
    if t.dtype.itemsize == 1:  # PyTorch cannot promote fp8
        return t.float()
    return t.to(torch.promote_types(t.dtype, torch.float32))


def _geometry(p: GroupedConvProblem) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...]]:
    """Return stride, padding and dilation as PyTorch takes them; its 2D routines are faster."""
    axes = "dhw"[3 - p.ndim :]
    return (
        tuple(getattr(p, f"stride_{a}") for a in axes),
        tuple(getattr(p, f"pad_{a}") for a in axes),
        tuple(getattr(p, f"dilation_{a}") for a in axes),
    )


def _to_first(p: GroupedConvProblem, t: torch.Tensor) -> torch.Tensor:
    """Return a tensor with channels first and widened, without the depth axis for 2D.

    Copied into that order: cuDNN generates and compiles code for depthwise shapes with channels last, 0.2 s for each.
    """
    t = _widened(t).permute(0, 4, 1, 2, 3)
    return (t.squeeze(2) if p.ndim == 2 else t).contiguous()


def _to_last(p: GroupedConvProblem, t: torch.Tensor) -> torch.Tensor:
    if p.ndim == 2:
        t = t.unsqueeze(2)
    return t.permute(0, 2, 3, 4, 1).contiguous()

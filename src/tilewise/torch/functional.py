"""``conv2d``, ``conv3d`` and ``matmul`` with PyTorch's signatures: what is served goes to :mod:`.operators`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from tilewise.torch import operators
from tilewise.torch.serving import DEVICE_TYPE, DTYPES, tell_once

Sizes = int | Sequence[int]


def conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes | str = 0,
    dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """``torch.nn.functional.conv2d``; the result is channels-last.

    Args:
        input: ([N,] C, H, W), bf16 or fp16; channels-last memory is read in place, any other copied.
        weight: (K, C / groups, Y, X), likewise.
        bias: (K,), added to the rounded result.
        stride: of each axis, or of all.
        padding: of each axis, or of all, or ``valid`` or ``same``.
        dilation: of each axis, or of all.
        groups: into which channels are divided.
    """
    return _conv(2, torch.nn.functional.conv2d, input, weight, bias, stride, padding, dilation, groups)


def conv3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes | str = 0,
    dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """``torch.nn.functional.conv3d``: :func:`conv2d` with a depth axis before the height."""
    return _conv(3, torch.nn.functional.conv3d, input, weight, bias, stride, padding, dilation, groups)


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """``torch.matmul``; matrices, and a batch of matrices times one matrix, are served.

    Args:
        input: (..., M, K), bf16 or fp16; a transposed matrix is read in place.
        other: (K, N), likewise.
    """
    input, other = _autocast(input), _autocast(other)
    if not _served(input, other) or input.dim() < 2 or other.dim() != 2 or input.shape[-1] != other.shape[0]:
        return torch.matmul(input, other)
    if input.dim() == 2:
        return operators.mm(input, other)
    return operators.mm(input.reshape(-1, input.shape[-1]), other).reshape(*input.shape[:-1], other.shape[1])


def _conv(
    ndim: int, own: Callable[..., Tensor], x: Tensor, w: Tensor, bias: Tensor | None, stride: Sizes,
    padding: Sizes | str, dilation: Sizes, groups: int,
) -> Tensor:  # fmt: skip
    x, w = _autocast(x), _autocast(w)
    if bias is not None:
        bias = _autocast(bias)
    geometry = _geometry(ndim, x, w, stride, padding, dilation, groups) if _served(x, w) else None
    if geometry is None or (bias is not None and (bias.dtype != x.dtype or bias.shape != w.shape[:1])):
        return own(x, w, bias, stride, padding, dilation, groups)
    strides, pads, more, dilations = geometry
    batched = x.dim() == ndim + 2
    if not batched:
        x = x.unsqueeze(0)
    if any(more):  # "same" with an even reach: one more at the end than at the beginning
        x = torch.nn.functional.pad(x, [n for extra in reversed(more) for n in (0, extra)])
    y = operators.conv(x, w, strides, pads, dilations, groups)
    if bias is not None:
        y = y + bias.reshape(-1, *(1,) * ndim)
    return y if batched else y.squeeze(0)


def _served(a: Tensor, b: Tensor) -> bool:
    """Whether kernels exist for such tensors; mismatches are PyTorch's to complain about."""
    if a.dtype not in DTYPES or a.device.type != DEVICE_TYPE:
        if not torch.compiler.is_compiling():
            tell_once(f"PyTorch's own operators are used for {a.dtype} on {a.device.type}: there are no kernels for it")
        return False
    return bool(b.dtype == a.dtype and b.device == a.device and a.numel() > 0 and b.numel() > 0)


def _autocast(t: Tensor) -> Tensor:
    """As autocast casts the operands of PyTorch's own convolutions and products."""
    kind = t.device.type
    if torch.is_autocast_enabled(kind) and t.dtype.is_floating_point and t.dtype != torch.float64:
        return t.to(torch.get_autocast_dtype(kind))
    return t


def _geometry(
    ndim: int, x: Tensor, w: Tensor, stride: Sizes, padding: Sizes | str, dilation: Sizes, groups: int
) -> tuple[list[int], list[int], list[int], list[int]] | None:
    """Strides, padding on both sides, more of it at the end, dilations; None where PyTorch shall complain."""
    if w.dim() != ndim + 2 or x.dim() not in (ndim + 1, ndim + 2) or groups < 1:
        return None
    channels, sizes, reach = x.shape[-ndim - 1], x.shape[-ndim:], w.shape[2:]
    if channels != w.shape[1] * groups or w.shape[0] % groups:
        return None
    strides, dilations = _each(ndim, stride), _each(ndim, dilation)
    if strides is None or dilations is None or min(*strides, *dilations) < 1:
        return None
    more = [0] * ndim
    if padding == "same":
        if any(s != 1 for s in strides):
            return None
        total = [d * (r - 1) for d, r in zip(dilations, reach, strict=True)]
        pads, more = [t // 2 for t in total], [t % 2 for t in total]
    elif padding == "valid":
        pads = [0] * ndim
    else:
        given = None if isinstance(padding, str) else _each(ndim, padding)
        if given is None or min(given) < 0:
            return None
        pads = given
    fits = all(
        size + 2 * p + m >= d * (r - 1) + 1
        for size, p, m, d, r in zip(sizes, pads, more, dilations, reach, strict=True)
    )
    return (strides, pads, more, dilations) if fits else None


def _each(ndim: int, value: Sizes | Any) -> list[int] | None:
    """One value an axis; None where there are as many others."""
    if isinstance(value, int):
        return [value] * ndim
    values = list(value)
    if len(values) == 1:
        values *= ndim
    return values if len(values) == ndim else None

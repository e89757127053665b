"""Calls of the drop-in functions, and comparisons of their results and gradients with PyTorch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as own

import tilewise.torch as ours

CONVS: dict[str, tuple[tuple[int, ...], tuple[int, ...], dict[str, Any]]] = {  # input, filter, arguments
    "plain": ((2, 3, 5, 4), (4, 3, 3, 2), {}),
    "groups, stride, dilation": ((1, 4, 7, 6), (6, 2, 3, 2), {"groups": 2, "stride": (2, 1), "dilation": (1, 2)}),
    "depthwise": ((1, 4, 4, 5), (4, 1, 3, 3), {"groups": 4, "padding": 1}),
    "padding by axis": ((1, 2, 3, 4), (3, 2, 3, 3), {"padding": (2, 1)}),
    "valid": ((1, 2, 4, 4), (2, 2, 1, 1), {"padding": "valid", "stride": 2}),
    "same": ((1, 2, 4, 5), (3, 2, 3, 3), {"padding": "same", "dilation": (2, 1)}),
    "same, even": ((1, 2, 4, 5), (3, 2, 2, 4), {"padding": "same"}),
    "no batch": ((2, 4, 4), (3, 2, 3, 3), {"padding": [1]}),
    "3D": ((1, 4, 3, 4, 3), (2, 2, 2, 3, 2), {"groups": 2, "stride": (1, 2, 1), "padding": (1, 1, 0)}),
    "3D, same": ((1, 2, 3, 2, 3), (2, 2, 2, 1, 3), {"padding": "same"}),
    "3D, flat": ((1, 2, 1, 4, 4), (2, 2, 1, 3, 3), {}),
    "3D, no batch": ((2, 2, 3, 3), (2, 2, 1, 2, 2), {}),
}
MATRICES: dict[str, tuple[Callable[[], torch.Tensor], Callable[[], torch.Tensor], str]] = {
    "rows, rows": (lambda: half(5, 8), lambda: half(8, 7), "rrr"),
    "rows, columns": (lambda: half(5, 8), lambda: half(7, 8).t(), "rcr"),
    "columns, rows": (lambda: half(8, 5).t(), lambda: half(8, 7), "crr"),
    "columns, columns": (lambda: half(8, 5).t(), lambda: half(7, 8).t(), "ccr"),
    "one row": (lambda: half(1, 8), lambda: half(7, 8).t(), "rcr"),
    "every other row": (lambda: half(10, 8)[::2], lambda: half(8, 14)[:, ::2], "rrr"),
    "batch": (lambda: half(2, 3, 8), lambda: half(8, 7), "rrr"),
}


def half(*shape: int) -> torch.Tensor:
    return torch.randn(*shape).half()


def conv_of(shape: tuple[int, ...]) -> tuple[Callable[..., torch.Tensor], Callable[..., torch.Tensor]]:
    """Return our and PyTorch's convolution for a filter of this shape."""
    return (ours.conv2d, own.conv2d) if len(shape) == 4 else (ours.conv3d, own.conv3d)


def assert_same(
    f: Callable[..., torch.Tensor], g: Callable[..., torch.Tensor], *operands: torch.Tensor, **options: Any
) -> torch.Tensor:
    """Check that `f` and `g` have the same results and gradients, and return the result of `f`."""
    mine, theirs = ([t.detach().clone().requires_grad_() for t in operands] for _ in range(2))
    y, right = f(*mine, **options), g(*theirs, **options)
    close(y, right)
    dy = torch.randn_like(right)
    for a, b in zip(torch.autograd.grad(y, mine, dy), torch.autograd.grad(right, theirs, dy), strict=True):
        close(a, b)
    return y


def close(a: torch.Tensor, b: torch.Tensor) -> None:
    """Check equality up to the rounding of sums: some last bits of the largest elements."""
    assert a.shape == b.shape
    assert a.dtype == b.dtype
    last_bit = 2**-10 if a.dtype == torch.float16 else 2**-7
    torch.testing.assert_close(a, b, rtol=2 * last_bit, atol=2 * last_bit * max(1.0, float(b.detach().abs().max())))

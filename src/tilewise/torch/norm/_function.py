"""Batch normalisation in training as a function that autograd knows: ``activation(norm(x) + residual)``."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from tilewise.kernels import STORED_FORMATS
from tilewise.torch._ended import finished
from tilewise.torch.norm import _kernels as kernels
from tilewise.torch.norm._grid import grid_of
from tilewise.torch.norm._launch import launch

ACTIVATIONS = ("", "relu", "silu", "hardswish")
DTYPES = (torch.bfloat16, torch.float16, torch.float32)


class Statistics(NamedTuple):
    """The running statistics of a batch normalisation, and how a step changes them.

    Attributes:
        mean, var: running statistics, (C,); updated in place.
        tracked: number of steps, one integer; updated in place.
        momentum: weight of a step's statistics.
        eps: added to the variance.
    """

    mean: Tensor
    var: Tensor
    tracked: Tensor
    momentum: float
    eps: float


def batch_norm(
    x: Tensor, weight: Tensor, bias: Tensor, statistics: Statistics, residual: Tensor | None, activation: str
) -> Tensor:
    """Return ``activation(norm(x) + residual)`` by the statistics of `x`, and update the running ones.

    Args:
        x: (N, C, ...), channels-last, of one of :data:`DTYPES`; more than one pixel.
        weight: (C,).
        bias: (C,).
        statistics: the running ones.
        residual: as `x`, or None.
        activation: of :data:`ACTIVATIONS`; with a residual "" or "relu".
    """
    result: Tensor = _BatchNorm.apply(x, weight, bias, residual, statistics, activation)
    return result


class _Context(Protocol):
    """The parts of autograd's context that the function uses."""

    saved_tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]
    eps: float
    activation: str
    has_residual: bool

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...


class _BatchNorm(torch.autograd.Function):  # type: ignore[misc] # torch has no types here
    """The function; `setup_context` would cost a look at its signature in every call."""

    @staticmethod
    def forward(
        ctx: _Context, x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, statistics: Statistics,
        activation: str,
    ) -> Tensor:  # fmt: skip
        grid, s = grid_of(x), statistics
        partial, mean, rstd = (_sums(x, n) for n in (2 * grid.shares, 1, 1))
        y = torch.empty_like(x)
        launch(kernels.moments, grid, (x, partial))
        tensors = (x, residual, weight, bias, y, mean, rstd, s.mean, s.var, s.tracked, partial)
        launch(kernels.normalise, grid, tensors, (float(s.momentum), float(s.eps)), ACTIVATION=activation)
        ctx.has_residual = residual is not None
        ctx.save_for_backward(x, weight, bias, mean, rstd, y if activation and ctx.has_residual else None)
        ctx.eps, ctx.activation = s.eps, activation
        return y

    @staticmethod
    def backward(ctx: _Context, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, rstd, y = ctx.saved_tensors
        last = STORED_FORMATS[x.dim()]
        x, dy = x.contiguous(memory_format=last), dy.contiguous(memory_format=last)  # hooks may store x otherwise
        y = None if y is None else y.contiguous(memory_format=last)
        if torch.is_grad_enabled():  # the gradient is to be differentiated itself
            return (*_differentiable(ctx, x, weight, bias, y, dy), None, None)
        grid = grid_of(x)
        partial = _sums(x, 2 * grid.shares)
        dx, dweight, dbias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)
        dresidual = torch.empty_like(x) if y is not None else None  # without ReLU it is dy
        saved = (dy, x, y, weight, bias, mean, rstd)
        launch(kernels.gradient_sums, grid, (*saved, partial), ACTIVATION=ctx.activation)
        written = (dx, dresidual, dweight, dbias, partial)
        launch(kernels.gradients, grid, (*saved, *written), ACTIVATION=ctx.activation)
        return dx, dweight, dbias, (dresidual if y is not None else dy) if ctx.has_residual else None, None, None


def _sums(x: Tensor, rows: int) -> Tensor:
    """Return memory for so many values of each channel."""
    return torch.empty(rows * x.shape[1], device=x.device, dtype=torch.float32)


def _differentiable(
    ctx: _Context, x: Tensor, weight: Tensor, bias: Tensor, y: Tensor | None, dy: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients by PyTorch's functions, which can be differentiated again."""
    before = dy if y is None else dy * (y > 0)  # of the addition; where ReLU follows, its result tells
    normal = functional.batch_norm(x, None, None, weight, bias, True, 0.0, ctx.eps)
    result = normal if ctx.has_residual else finished(normal, None, ctx.activation)
    wanted = [t for t in (x, weight, bias) if t.requires_grad]
    found = iter(torch.autograd.grad(result, wanted, before, create_graph=True) if wanted else ())
    inner = (next(found) if t.requires_grad else None for t in (x, weight, bias))
    return (*inner, before if ctx.has_residual else None)

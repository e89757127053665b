"""Batch normalisation in training as a function that autograd knows: ``activation(norm(x) + residual)``."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional

from tilewise.kernels import STORED_FORMATS
from tilewise.torch._ended import finished
from tilewise.torch.norm import _kernels as kernels
from tilewise.torch.norm._grid import grid_of

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
    y, _, _ = _BatchNorm.apply(x, weight, bias, residual, statistics, activation)
    result: Tensor = y
    return result


class _Context(Protocol):
    """The parts of autograd's context that the function uses."""

    saved_tensors: tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor | None]
    eps: float
    activation: str
    has_residual: bool

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...

    def mark_non_differentiable(self, *tensors: Tensor) -> None: ...


class _BatchNorm(torch.autograd.Function):  # type: ignore[misc] # torch has no types here
    """The function; it also returns the batch's mean and 1 / its standard deviation, in fp32."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor, residual: Tensor | None, statistics: Statistics, activation: str
    ) -> tuple[Tensor, Tensor, Tensor]:
        grid, s = grid_of(x), statistics
        partial = torch.empty(2 * grid.shares * x.shape[1], device=x.device, dtype=torch.float32)
        mean, rstd = torch.empty((2, x.shape[1]), device=x.device, dtype=torch.float32)
        y = torch.empty_like(x)
        with _on_device(x):
            kernels.moments[grid.programs](x, partial, *grid.sizes, **grid.options)
            kernels.normalise[grid.programs](
                x, residual, weight, bias, y, mean, rstd, s.mean, s.var, s.tracked, partial, *grid.sizes, s.momentum,
                s.eps, ACTIVATION=activation, **grid.options,
            )  # fmt: skip
        return y, mean, rstd

    @staticmethod
    def setup_context(
        ctx: _Context,
        inputs: tuple[Tensor, Tensor, Tensor, Tensor | None, Statistics, str],
        output: tuple[Tensor, Tensor, Tensor],
    ) -> None:
        x, weight, bias, residual, statistics, activation = inputs
        y, mean, rstd = output
        ctx.mark_non_differentiable(mean, rstd)
        ctx.has_residual = residual is not None
        ctx.save_for_backward(x, weight, bias, mean, rstd, y if activation and ctx.has_residual else None)
        ctx.eps, ctx.activation = statistics.eps, activation

    @staticmethod
    def backward(ctx: _Context, dy: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, mean, rstd, y = ctx.saved_tensors
        dy = dy.contiguous(memory_format=STORED_FORMATS[x.dim()])
        if torch.is_grad_enabled():  # the gradient is to be differentiated itself
            return (*_differentiable(ctx, x, weight, bias, y, dy), None, None)
        grid = grid_of(x)
        partial = torch.empty(2 * grid.shares * x.shape[1], device=x.device, dtype=torch.float32)
        dx, dweight, dbias = torch.empty_like(x), torch.empty_like(weight), torch.empty_like(bias)
        dresidual = torch.empty_like(x) if y is not None else None  # without ReLU it is dy
        saved = (dy, x, y, weight, bias, mean, rstd)
        with _on_device(x):
            kernels.gradient_sums[grid.programs](
                *saved, partial, *grid.sizes, ACTIVATION=ctx.activation, **grid.options
            )
            kernels.gradients[grid.programs](
                *saved, dx, dresidual, dweight, dbias, partial, *grid.sizes, ACTIVATION=ctx.activation, **grid.options
            )  # fmt: skip
        return dx, dweight, dbias, (dresidual if y is not None else dy) if ctx.has_residual else None, None, None


def _differentiable(
    ctx: _Context, x: Tensor, weight: Tensor, bias: Tensor, y: Tensor | None, dy: Tensor
) -> tuple[Tensor | None, ...]:
    """Return the gradients by PyTorch's functions, which can be differentiated again."""
    before = dy if y is None else dy * (y > 0)  # of the addition; where ReLU follows, its result tells
    normal = functional.batch_norm(x, None, None, weight, bias, True, 0.0, ctx.eps)
    result = normal if ctx.has_residual else finished(normal, None, ctx.activation)
    wanted = [t for t in (x, weight, bias) if t.requires_grad]
    found = iter(torch.autograd.grad(result, wanted, before, create_graph=True))
    inner = (next(found) if t.requires_grad else None for t in (x, weight, bias))
    return (*inner, before if ctx.has_residual else None)


def _on_device(x: Tensor) -> AbstractContextManager[None]:
    made: AbstractContextManager[None] = torch.cuda.device_of(x)
    return made

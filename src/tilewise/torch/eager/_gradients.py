"""Calls with gradients as functions that autograd knows: kernels are launched without PyTorch's operators in between.

An operator of ours costs the host about as much again as its kernel's launch. Where a gradient is to be differentiated
itself, or something watches operators, they compute it. Hooks for saved tensors may give them back stored otherwise.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Protocol

import torch
from torch import Tensor

from tilewise.kernels import STORED_FORMATS
from tilewise.torch import _ended as ended
from tilewise.torch import _operators as operators
from tilewise.torch._ended import NOTHING, Ends
from tilewise.torch._operators import Inputs, Multiply
from tilewise.torch.eager._known import Known, Wanted, is_watched


def convolve(call: Known, x: Tensor, w: Tensor, bias: Tensor | None) -> Tensor:
    """Return the result of a known convolution, given its gradients' geometry; the input is stored channels-last."""
    y: Tensor = _Convolution.apply(x, w, bias, call)
    return y


def multiply(call: Known, a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    """Return the result of a known product of two matrices, which are stored as its layout says."""
    c: Tensor = _Product.apply(a, b, bias, call)
    return c


class _Context(Protocol):
    """The parts of autograd's context that the functions use."""

    saved_tensors: Inputs  # the operands; of a product, those that its gradients read, else None
    needs_input_grad: Sequence[bool]
    call: Known

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...


Gradients = tuple[Tensor | None, Tensor | None, Tensor | None, None]  # of both operands and the bias


class _Convolution(torch.autograd.Function):  # type: ignore[misc] # torch has no types here
    @staticmethod
    def forward(ctx: _Context, x: Tensor, w: Tensor, bias: Tensor | None, call: Known) -> Tensor:
        ctx.save_for_backward(x, w)
        y = _run(ctx, x, w, bias, call)
        if y is not None:
            return y
        geometry = call.geometry or ()
        if bias is None:
            return operators.conv(x, w, *geometry)
        return ended.conv_ended(x, w, bias, None, "", *geometry)

    @staticmethod
    def backward(ctx: _Context, dy: Tensor) -> Gradients:
        last, wanted, call = STORED_FORMATS[dy.dim()], ctx.needs_input_grad, ctx.call
        x, w, dy = (t.contiguous(memory_format=last) for t in (*ctx.saved_tensors, dy))
        geometry, dx, dw = call.geometry or (), None, None
        if wanted[0] and (dx := _gradient(call.problems[1], dy, w)) is None:
            dx = operators.conv_bwd_data(dy, w, x.shape, *geometry)
        if wanted[1] and (dw := _gradient(call.problems[2], dy, x)) is None:
            dw = operators.conv_bwd_weight(dy, x, w.shape, *geometry)
        return dx, dw, dy.sum([0, *range(2, dy.dim())]) if wanted[2] else None, None


class _Product(torch.autograd.Function):  # type: ignore[misc] # as above
    @staticmethod
    def forward(ctx: _Context, a: Tensor, b: Tensor, bias: Tensor | None, call: Known) -> Tensor:
        ctx.save_for_backward(*operators.needed(ctx.needs_input_grad, a, b))
        c = _run(ctx, a, b, bias, call)
        if c is not None:
            return c
        return operators.mm(a, b) if bias is None else ended.mm_ended(a, b, bias, None, "")

    @staticmethod
    def backward(ctx: _Context, g: Tensor) -> Gradients:
        (a, b), g = ctx.saved_tensors, g.contiguous()
        _, problem, _ = ctx.call.problems[0]
        letters: str = problem.layout[:2]  # type: ignore[attr-defined] # it is one of a product
        products: Sequence[Multiply] = operators.products()
        if all(t is None or _is_stored(t, letter) for t, letter in zip((a, b), letters, strict=True)):
            products = [partial(_gradient_product, wanted) for wanted in ctx.call.problems[1:]]
        da, db = operators.mm_gradient_tensors(operators.Kept(a, b, letters), g, ctx.needs_input_grad, *products)
        return da, db, g.sum(0) if ctx.needs_input_grad[2] else None, None


def _is_stored(t: Tensor, letter: str) -> bool:
    return bool((t if letter == "r" else t.t()).is_contiguous())


def _run(ctx: _Context, a: Tensor, b: Tensor, bias: Tensor | None, call: Known) -> Tensor | None:
    """Keep the call for the gradients; return the result by the kernel that ran before, None without one."""
    ctx.call = call
    return ended.run_again(*call.problems[0], a, b, NOTHING if bias is None else Ends(bias))


def _gradient_product(wanted: Wanted, a: Tensor, b: Tensor) -> Tensor:
    product = _gradient(wanted, a, b)
    return operators.mm(a, b) if product is None else product


def _gradient(wanted: Wanted, a: Tensor, b: Tensor) -> Tensor | None:
    """Return a gradient by the kernel that computed it before; None where an operator has to."""
    if torch.is_grad_enabled() or is_watched():
        return None
    return ended.run_again(*wanted, a, b, NOTHING)

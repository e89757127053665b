"""Transposed convolutions with PyTorch's signatures: each is the gradient of a convolution for its input."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tilewise.kernels import EMPTY_KIND, STORED_FORMATS
from tilewise.ops import GroupedConvProblem
from tilewise.torch import _functional as functional
from tilewise.torch import _operators as operators
from tilewise.torch import eager
from tilewise.torch._ended import ends_of
from tilewise.torch._functional import Sizes
from tilewise.torch._serving import target_name

VARIANTS = ("bwd_data", "forward", "bwd_weight")  # of the result, and of the gradients for input and filter


class Arguments(NamedTuple):
    """Arguments of a transposed convolution, in the order in which PyTorch takes them."""

    ndim: int  # number of spatial axes
    stride: Sizes
    padding: Sizes
    output_padding: Sizes
    groups: int
    dilation: Sizes


class Geometry(NamedTuple):
    """The convolution for whose input the result is the gradient."""

    sizes: list[int]  # of its input
    strides: list[int]
    pads: list[int]
    dilations: list[int]
    groups: int


def conv_transpose2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes = 0,
    output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1,
) -> Tensor:  # fmt: skip
    """Compute ``torch.nn.functional.conv_transpose2d(...)``; the result is channels-last.

    Args:
        input: ([N,] C, H, W), bf16 or fp16; channels-last memory is read in place, any other copied.
        weight: (C, K / groups, Y, X), of the same dtype.
        bias: (K,), of the same dtype.
        stride: one number, or one per axis.
        padding: likewise.
        output_padding: likewise; rows and columns that the result has in addition.
        groups: number of groups that the channels are divided into.
        dilation: one number, or one per axis.
    """
    arguments = Arguments(2, stride, padding, output_padding, groups, dilation)
    return convolve(torch.nn.functional.conv_transpose2d, input, weight, bias, arguments)


def conv_transpose3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes = 0,
    output_padding: Sizes = 0, groups: int = 1, dilation: Sizes = 1,
) -> Tensor:  # fmt: skip
    """Compute ``torch.nn.functional.conv_transpose3d(...)``: :func:`conv_transpose2d` with a depth axis."""
    arguments = Arguments(3, stride, padding, output_padding, groups, dilation)
    return convolve(torch.nn.functional.conv_transpose3d, input, weight, bias, arguments)


def convolve(own: Callable[..., Tensor], x: Tensor, w: Tensor, bias: Tensor | None, arguments: Arguments) -> Tensor:
    """Compute a transposed convolution by a kernel if there is one, or by PyTorch's `own` function."""
    ndim, graded = arguments.ndim, eager.needs_gradients(x, w, bias)
    key = eager.key_of(x, w, ends_of(bias, None, None), arguments)
    call = eager.known(key)
    # PyTorch's gradients run later, in the mode of then; cuDNN was measured in benchmark mode.
    if call is not None and (torch.backends.cudnn.benchmark or not graded) and eager.is_left(call):
        y = eager.in_benchmark_mode(own, x, w, bias, *arguments[1:])
        return y if eager.is_transformed() else y.contiguous(memory_format=STORED_FORMATS[ndim + 2])
    operand, w_cast = functional.autocast(x), functional.autocast(w)
    added = None if bias is None else functional.autocast(bias)
    geometry = geometry_of(operand, w_cast, arguments) if functional.served(operand, w_cast) else None
    if geometry is None or (added is not None and not functional.is_like(added, operand, geometry.sizes[1:2])):
        return own(x, w, bias, *arguments[1:])
    batched = x.dim() == ndim + 2
    if batched and key is not None and eager.is_new(key):
        problem = operators.shaped_problem(geometry.sizes, w.shape, *geometry[1:])
        variants = VARIANTS if graded else VARIANTS[:1]
        wanted = [(target_name(problem.op, v, operand.dtype, operand.device), problem, EMPTY_KIND) for v in variants]
        eager.remember(key, wanted, is_plain=False)
    operand = operand if batched else operand.unsqueeze(0)
    y = operators.conv_bwd_data(operand, w_cast, *geometry, *functional.models_of(GroupedConvProblem.op, operand))
    y = y if added is None else y + added.view(-1, *[1] * ndim)
    return y if batched else y.squeeze(0)


def geometry_of(x: Tensor, w: Tensor, arguments: Arguments) -> Geometry | None:
    """Return the convolution of which a call computes the gradient, or None if PyTorch has to refuse the call."""
    ndim, groups = arguments.ndim, arguments.groups
    if w.dim() != ndim + 2 or x.dim() not in (ndim + 1, ndim + 2) or groups < 1:
        return None
    if x.shape[-ndim - 1] != w.shape[0] or w.shape[0] % groups:
        return None
    given = (arguments.stride, arguments.padding, arguments.output_padding, arguments.dilation)
    strides, pads, end_pads, dilations = (functional.each_axis(ndim, value) for value in given)
    if strides is None or pads is None or end_pads is None or dilations is None:
        return None
    if min(*strides, *dilations) < 1 or min(*pads, *end_pads) < 0:
        return None
    axes = zip(x.shape[-ndim:], w.shape[2:], strides, pads, end_pads, dilations, strict=True)
    spatial = [(size - 1) * s - 2 * p + d * (reach - 1) + end + 1 for size, reach, s, p, end, d in axes]
    sizes = [x.shape[0] if x.dim() == ndim + 2 else 1, w.shape[1] * groups, *spatial]
    if min(sizes) < 1 or operators.result_sizes(sizes, w.shape, strides, pads, dilations)[2:] != x.shape[-ndim:]:
        return None  # a wider output_padding, for example, that only a dilation allows
    return Geometry(sizes, strides, pads, dilations, groups)

"""``conv2d``, ``conv3d`` and ``matmul`` with PyTorch's signatures, on the operators of :mod:`._operators`."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tilewise.ops import OPS, GroupedConvProblem
from tilewise.torch import _eager as eager
from tilewise.torch import _operators as operators
from tilewise.torch._serving import DEVICE_TYPE, DTYPES, identity_of, target_name, warn_once

Sizes = int | Sequence[int]

_LAST = {2: torch.channels_last, 3: torch.channels_last_3d}  # by number of spatial axes


class Arguments(NamedTuple):
    """Arguments of a convolution, as PyTorch takes them."""

    ndim: int  # number of spatial axes
    stride: Sizes
    padding: Sizes | str
    dilation: Sizes
    groups: int


class Geometry(NamedTuple):
    """Arguments of a convolution, one value per spatial axis."""

    strides: list[int]
    pads: list[int]  # on both sides
    end_pads: list[int]  # in addition, at the end
    dilations: list[int]


def conv2d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes | str = 0,
    dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Compute ``torch.nn.functional.conv2d``; the result is channels-last.

    Args:
        input: ([N,] C, H, W), bf16 or fp16; channels-last memory is read in place, any other copied.
        weight: (K, C / groups, Y, X), of the same dtype.
        bias: (K,), added to the rounded result.
        stride: one number, or one per axis.
        padding: one number, one per axis, ``valid`` or ``same``.
        dilation: one number, or one per axis.
        groups: number of groups that the channels are divided into.
    """
    return _conv(torch.nn.functional.conv2d, input, weight, bias, Arguments(2, stride, padding, dilation, groups))


def conv3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes | str = 0,
    dilation: Sizes = 1, groups: int = 1,
) -> Tensor:  # fmt: skip
    """Compute ``torch.nn.functional.conv3d``: :func:`conv2d` with a depth axis before the height."""
    return _conv(torch.nn.functional.conv3d, input, weight, bias, Arguments(3, stride, padding, dilation, groups))


def matmul(input: Tensor, other: Tensor) -> Tensor:
    """Compute ``torch.matmul``; kernels serve products of two matrices, and of a batch of matrices with one matrix.

    Args:
        input: (..., M, K), bf16 or fp16; a transposed matrix is read in place.
        other: (K, N), of the same dtype; may be transposed as well.
    """
    key = _key_of(input, other)
    call = eager.known(key)
    if call is not None:
        if eager.is_left(call):
            return torch.matmul(input, other)
        if (product := _short_product(call, input, other)) is not None:
            return product
    input, other = autocast(input), autocast(other)
    if not served(input, other) or input.dim() < 2 or other.dim() != 2 or input.shape[-1] != other.shape[0]:
        return torch.matmul(input, other)
    _remember_product(key, input, other)
    models = _models("gemm", input)
    if input.dim() == 2:
        return operators.mm(input, other, *models)
    product = operators.mm(input.reshape(-1, input.shape[-1]), other, *models)
    return product.reshape(*input.shape[:-1], other.shape[1])


def linear(input: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Compute ``torch.nn.functional.linear``.

    Args:
        input: (..., K), bf16 or fp16.
        weight: (N, K), of the same dtype.
        bias: (N,), added to the rounded result.
    """
    other = weight.t()
    call = eager.known(_key_of(input, other))
    if call is not None:
        if eager.is_left(call):
            return torch.nn.functional.linear(input, weight, bias)
        if (product := _short_product(call, input, other)) is not None:
            return product if bias is None else _added(product, bias)
    product = matmul(input, other)
    return product if bias is None else product + autocast(bias)


def _conv(own: Callable[..., Tensor], x: Tensor, w: Tensor, bias: Tensor | None, arguments: Arguments) -> Tensor:
    """Convolve with a kernel if there is one, or with PyTorch's `own` function."""
    ndim, stride, padding, dilation, groups = arguments
    key = _key_of(x, w, bias, arguments)
    call = eager.known(key)
    if call is not None:
        if eager.is_left(call) and (torch.backends.cudnn.benchmark or not _needs_gradients(x, w)):
            # PyTorch's gradients run later, in the mode of then; cuDNN was measured in benchmark mode.
            return eager.in_benchmark_mode(own, x, w, bias, *arguments[1:]).contiguous(memory_format=_LAST[ndim])
        if call.is_plain and not eager.is_watched():
            y = operators.run_conv(*call.problems[0], x, w, bias)
            if y is not None:
                return y
    x, w = autocast(x), autocast(w)
    if bias is not None:
        bias = autocast(bias)
    geometry = geometry_of(x, w, arguments) if served(x, w) else None
    if geometry is None or (bias is not None and (bias.dtype != x.dtype or bias.shape != w.shape[:1])):
        return own(x, w, bias, stride, padding, dilation, groups)
    strides, pads, end_pads, dilations = geometry
    batched = x.dim() == ndim + 2
    if not batched:
        x = x.unsqueeze(0)
    if (
        key is not None
        and eager.is_new(key)
        and batched
        and not any(end_pads)
        and x.is_contiguous(memory_format=_LAST[ndim])
    ):
        problem = operators.shaped_problem(x.shape, w.shape, strides, pads, dilations, groups)
        graded = _needs_gradients(x, w)
        variants = GroupedConvProblem.variants if graded else ("forward",)
        problems = [(target_name(problem.op, v, x.dtype, x.device), problem) for v in variants]
        is_plain = not graded and not _casts() and w.is_contiguous(memory_format=_LAST[ndim])
        eager.remember(key, problems, is_plain=is_plain)
    if any(end_pads):  # "same" with an even filter: one more at the end than at the beginning
        x = torch.nn.functional.pad(x, [n for end in reversed(end_pads) for n in (0, end)])
    y = operators.conv(x, w, strides, pads, dilations, groups, *_models("grouped_conv", x))
    if bias is not None:
        y = y + bias.reshape(-1, *(1,) * ndim)
    return y if batched else y.squeeze(0)


def _key_of(
    a: Tensor, b: Tensor, bias: Tensor | None = None, arguments: Arguments | None = None
) -> tuple[Hashable, ...] | None:
    """Return all of a call that decides which kernel computes it; None while a graph is traced."""
    if torch.compiler.is_compiling():
        return None
    added = None if bias is None else (bias.shape, bias.dtype, bias.get_device())
    cast = torch.get_autocast_dtype(DEVICE_TYPE) if _casts() else None
    graded = torch.is_grad_enabled() and (a.requires_grad or b.requires_grad)
    first = (a.shape, a.stride(), a.dtype, a.get_device())
    return (*first, b.shape, b.stride(), b.dtype, b.get_device(), added, cast, arguments, graded)


def _added(product: Tensor, bias: Tensor) -> Tensor:
    return product.add_(bias) if bias.dtype is product.dtype else product + bias


def _casts() -> bool:
    return bool(torch.is_autocast_enabled(DEVICE_TYPE))


def _needs_gradients(a: Tensor, b: Tensor) -> bool:
    return bool(torch.is_grad_enabled() and (a.requires_grad or b.requires_grad))


def _remember_product(key: tuple[Hashable, ...] | None, a: Tensor, b: Tensor) -> None:
    """Remember the problems of a product, with those of its gradients if they are needed."""
    if key is None or not eager.is_new(key):
        return
    a = a if a.dim() == 2 else a.reshape(-1, a.shape[-1])
    problem, graded = operators.mm_problem(a, b), _needs_gradients(a, b)
    problems = (problem, *operators.mm_gradients(problem)) if graded else (problem,)
    is_stored = all(t.is_contiguous() or t.t().is_contiguous() for t in (a, b))
    targets = [(target_name(p.op, "universal", a.dtype, a.device), p) for p in problems]
    eager.remember(key, targets, is_plain=is_stored and not graded and not _casts())


def _short_product(call: eager.Known, a: Tensor, b: Tensor) -> Tensor | None:
    """Return the product by the kernel of a known call, or None if the operator has to compute it."""
    if not call.is_plain or eager.is_watched():
        return None
    if a.dim() == 2:
        return operators.run_mm(*call.problems[0], a, b)
    product = operators.run_mm(*call.problems[0], a.reshape(-1, a.shape[-1]), b)
    return None if product is None else product.view(*a.shape[:-1], b.shape[1])


def _models(op: str, tensor: Tensor) -> tuple[str, ...]:
    """Return the operator's argument that identifies the dispatchers; left out unless a graph is traced."""
    return (_identity(op, tensor.dtype, tensor.device),) if torch.compiler.is_compiling() else ()


@torch.compiler.assume_constant_result  # type: ignore[untyped-decorator] # torch has no types here
def _identity(op: str, dtype: torch.dtype, device: torch.device) -> str:
    return identity_of(op, OPS[op].variants, dtype, device)


def served(a: Tensor, b: Tensor) -> bool:
    """Return whether kernels exist for such tensors; PyTorch reports mismatches between them."""
    if a.dtype not in DTYPES or a.device.type != DEVICE_TYPE:
        if not torch.compiler.is_compiling():
            warn_once(f"PyTorch's own operators are used for {a.dtype} on {a.device.type}: there are no kernels for it")
        return False
    return bool(b.dtype == a.dtype and b.device == a.device and a.numel() > 0 and b.numel() > 0)


def autocast(t: Tensor) -> Tensor:
    """Cast a tensor as autocast casts the operands of PyTorch's own convolutions and products."""
    kind = t.device.type
    if torch.is_autocast_enabled(kind) and t.dtype.is_floating_point and t.dtype != torch.float64:
        return t.to(torch.get_autocast_dtype(kind))
    return t


def geometry_of(x: Tensor, w: Tensor, arguments: Arguments) -> Geometry | None:
    """Return the values per axis of a convolution's arguments, or None if PyTorch has to refuse them."""
    ndim, stride, padding, dilation, groups = arguments
    if w.dim() != ndim + 2 or x.dim() not in (ndim + 1, ndim + 2) or groups < 1:
        return None
    channels, sizes, reach = x.shape[-ndim - 1], x.shape[-ndim:], w.shape[2:]
    if channels != w.shape[1] * groups or w.shape[0] % groups:
        return None
    strides, dilations = _each(ndim, stride), _each(ndim, dilation)
    if strides is None or dilations is None or min(*strides, *dilations) < 1:
        return None
    end_pads = [0] * ndim
    if padding == "same":
        if any(s != 1 for s in strides):
            return None
        total = [d * (r - 1) for d, r in zip(dilations, reach, strict=True)]
        pads, end_pads = [t // 2 for t in total], [t % 2 for t in total]
    elif padding == "valid":
        pads = [0] * ndim
    else:
        chosen = None if isinstance(padding, str) else _each(ndim, padding)
        if chosen is None or min(chosen) < 0:
            return None
        pads = chosen
    fits = all(
        size + 2 * p + end >= d * (r - 1) + 1
        for size, p, end, d, r in zip(sizes, pads, end_pads, dilations, reach, strict=True)
    )
    return Geometry(strides, pads, end_pads, dilations) if fits else None


def _each(ndim: int, value: Sizes) -> list[int] | None:
    """Return one value per axis, or None for a wrong number of values."""
    if isinstance(value, int):
        return [value] * ndim
    values = list(value)
    if len(values) == 1:
        values *= ndim
    return values if len(values) == ndim else None

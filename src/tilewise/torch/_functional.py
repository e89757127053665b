"""``conv2d``, ``conv3d``, ``matmul`` and ``linear`` with PyTorch's signatures and an epilogue, on our operators."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.utils._python_dispatch import is_traceable_wrapper_subclass

from tilewise.kernels import EMPTY_KIND, STORED_FORMATS
from tilewise.ops import OPS, GroupedConvProblem
from tilewise.torch import _ended as ended
from tilewise.torch import _operators as operators
from tilewise.torch import eager
from tilewise.torch._ended import NOTHING, Ends, ends_of
from tilewise.torch._serving import DEVICE_TYPE, DTYPES, identity_of, target_name, warn_once

Sizes = int | Sequence[int]


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
    dilation: Sizes = 1, groups: int = 1, *, residual: Tensor | None = None, activation: str | None = None,
) -> Tensor:  # fmt: skip
    """Compute ``activation(torch.nn.functional.conv2d(...) + residual)``; the result is channels-last.

    Args:
        input: ([N,] C, H, W), bf16 or fp16; channels-last memory is read in place, any other copied.
        weight: (K, C / groups, Y, X), of the same dtype.
        bias: (K,), added before the result is rounded.
        stride: one number, or one per axis.
        padding: one number, one per axis, ``valid`` or ``same``.
        dilation: one number, or one per axis.
        groups: number of groups that the channels are divided into.
        residual: of the result's shape and dtype, added before it is rounded; any other as PyTorch adds it.
        activation: one of :data:`tilewise.kernels.ACTIVATIONS`, or None.

    Raises:
        ProblemError: the activation is unknown.
    """
    ends = ends_of(bias, residual, activation)
    return convolve(torch.nn.functional.conv2d, input, weight, ends, Arguments(2, stride, padding, dilation, groups))


def conv3d(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, stride: Sizes = 1, padding: Sizes | str = 0,
    dilation: Sizes = 1, groups: int = 1, *, residual: Tensor | None = None, activation: str | None = None,
) -> Tensor:  # fmt: skip
    """Compute ``activation(torch.nn.functional.conv3d(...) + residual)``: :func:`conv2d` with a depth axis."""
    ends = ends_of(bias, residual, activation)
    return convolve(torch.nn.functional.conv3d, input, weight, ends, Arguments(3, stride, padding, dilation, groups))


def matmul(
    input: Tensor, other: Tensor, *, bias: Tensor | None = None, residual: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:  # fmt: skip
    """Compute ``activation(torch.matmul(input, other) + bias + residual)``.

    Kernels serve products of two matrices, and of a batch of matrices with one matrix.

    Args:
        input: (..., M, K), bf16 or fp16; a transposed matrix is read in place.
        other: (K, N), of the same dtype; may be transposed as well.
        bias: (N,), added before the result is rounded.
        residual: of the result's shape and dtype, likewise; any other as PyTorch adds it.
        activation: one of :data:`tilewise.kernels.ACTIVATIONS`, or None.

    Raises:
        ProblemError: the activation is unknown.
    """

    def own() -> Tensor:
        product = torch.matmul(input, other)
        return product if bias is None else product + autocast(bias)

    return _product(own, input, other, ends_of(bias, residual, activation))


def linear(
    input: Tensor, weight: Tensor, bias: Tensor | None = None, *, residual: Tensor | None = None,
    activation: str | None = None,
) -> Tensor:  # fmt: skip
    """Compute ``activation(torch.nn.functional.linear(...) + residual)``.

    Args:
        input: (..., K), bf16 or fp16.
        weight: (N, K), of the same dtype.
        bias: (N,), added before the result is rounded.
        residual: of the result's shape and dtype, likewise; any other as PyTorch adds it.
        activation: one of :data:`tilewise.kernels.ACTIVATIONS`, or None.

    Raises:
        ProblemError: the activation is unknown.
    """
    return transform(input, weight, ends_of(bias, residual, activation))


def transform(x: Tensor, w: Tensor, ends: Ends) -> Tensor:
    """Return :func:`linear` with an epilogue."""
    return _product(lambda: torch.nn.functional.linear(x, w, ends.bias), x, w.t(), ends)


def convolve(own: Callable[..., Tensor], x: Tensor, w: Tensor, ends: Ends, arguments: Arguments) -> Tensor:
    """Convolve with a kernel if there is one, or with PyTorch's `own` function."""
    if _activates_later(x, w, ends):
        y = convolve(own, x, w, ends._replace(activation=""), arguments)
        return ended.finished(y, None, ends.activation)
    ndim, stride, padding, dilation, groups = arguments
    key = eager.key_of(x, w, ends, arguments)
    call = eager.known(key)
    if call is not None and (y := _short_conv(call, own, x, w, ends, arguments)) is not None:
        return y
    operand, w_cast = autocast(x), autocast(w)
    bias, residual, activation = ends[:3]
    bias = None if bias is None else autocast(bias)
    geometry = geometry_of(operand, w_cast, arguments) if served(operand, w_cast) else None
    if geometry is None or (bias is not None and not is_like(bias, operand, w.shape[:1])):
        return ended.finished(own(operand, w_cast, bias, stride, padding, dilation, groups), residual, activation)
    strides, pads, end_pads, dilations = geometry
    batched = x.dim() == ndim + 2
    operand = operand if batched else operand.unsqueeze(0)
    if any(end_pads):  # "same" with an even filter: one more at the end than at the beginning
        operand = torch.nn.functional.pad(operand, [n for end in reversed(end_pads) for n in (0, end)])
    if residual is not None:
        sizes = operators.result_sizes(operand.shape, w.shape, strides, pads, dilations)
        if not is_like(residual, operand, sizes if batched else sizes[1:]):
            return ended.finished(convolve(own, x, w, Ends(bias), arguments), residual, activation)
        residual = residual if batched else residual.unsqueeze(0)
    values = (strides, pads, dilations, groups)
    if key is not None and batched and not any(end_pads):
        _remember_conv(key, operand, w_cast, ends, values)
        call = eager.known(key)
        if call is not None and _is_short_at_once(call, ends):
            y = _short_conv(call, own, x, w, ends, arguments)
            if y is not None:
                return y
    models = models_of("grouped_conv", operand)
    if ends is NOTHING:
        y = operators.conv(operand, w_cast, *values, *models)
    else:
        y = ended.conv_ended(operand, w_cast, bias, residual, activation, *values, *models)
    return y if batched else y.squeeze(0)


def _short_conv(
    call: eager.Known, own: Callable[..., Tensor], x: Tensor, w: Tensor, ends: Ends, arguments: Arguments
) -> Tensor | None:
    """Return the result of a known call on a short way, or None if the operator has to compute it."""
    last = STORED_FORMATS[arguments.ndim + 2]
    has_end = ends.residual is not None or ends.activation  # of which a call of ours computes more at once
    runs_kernel = eager.runs_kernels(call)
    # PyTorch's gradients run later, in the mode of then; cuDNN was measured in benchmark mode.
    may_be_own = torch.backends.cudnn.benchmark or not eager.needs_gradients(x, w)
    if not (has_end and runs_kernel) and may_be_own and eager.is_left(call):
        y = eager.in_benchmark_mode(own, x, w, ends.bias, *arguments[1:])
        y = y if eager.is_transformed() else y.contiguous(memory_format=last)  # vmap hides the order in memory
        return ended.finished(y, ends.residual, ends.activation)
    if not runs_kernel:
        return None
    x, (target, problem, kind) = x.contiguous(memory_format=last), call.problems[0]
    if call.geometry is not None:
        return eager.convolve(call, x, w, ends.bias)
    y = ended.run_again(target, problem, kind, x, w, ends)
    return ended.run_conv(target, problem, x, w, ends) if y is None else y


def _is_short_at_once(call: eager.Known, ends: Ends) -> bool:
    """Return whether a new call goes the short way already.

    Operators do not know the wish for one launch. Where PyTorch computes a call, its graph must be that of later calls:
    checkpoints repeat it.
    """
    return ends.in_one_launch or eager.is_left(call)


def _remember_conv(
    key: tuple[Hashable, ...], x: Tensor, w: Tensor, ends: Ends, values: tuple[list[int], list[int], list[int], int]
) -> None:
    """Remember the problems of a convolution, with those of its gradients if they are needed."""
    last = STORED_FORMATS[x.dim()]
    if not eager.is_new(key):
        return
    problem, graded = operators.shaped_problem(x.shape, w.shape, *values), eager.needs_gradients(x, w, *ends[:2])
    is_stored = all(t is None or t.is_contiguous(memory_format=last) for t in (w, ends.residual))
    is_stored = is_stored and (ends.bias is None or ends.bias.is_contiguous()) and x.dim() == problem.ndim + 2
    wanted = [(target_name(problem.op, "forward", x.dtype, x.device), problem, ends.kind)]
    if graded:
        gradients = GroupedConvProblem.variants[1:]
        wanted += [(target_name(problem.op, v, x.dtype, x.device), problem, EMPTY_KIND) for v in gradients]
    is_plain = is_stored and eager.are_plain(x, w, ends)
    geometry = values if is_plain and graded and eager.is_bias(ends) else None
    eager.remember(key, wanted, is_plain=is_plain and not graded, geometry=geometry)


def _product(own: Callable[[], Tensor], a: Tensor, b: Tensor, ends: Ends) -> Tensor:
    """Multiply by a kernel if there is one, or by PyTorch's `own` function, which adds the bias."""
    if _activates_later(a, b, ends):
        return ended.finished(_product(own, a, b, ends._replace(activation="")), None, ends.activation)
    key = eager.key_of(a, b, ends)
    call = eager.known(key)
    if call is not None and (product := _short_product(call, own, a, b, ends)) is not None:
        return product
    first, other = autocast(a), autocast(b)
    bias, residual, activation = ends[:3]
    bias = None if bias is None else autocast(bias)
    fits = served(first, other) and a.dim() >= 2 and b.dim() == 2 and a.shape[-1] == b.shape[0]
    if not fits or (bias is not None and not is_like(bias, first, b.shape[1:])):
        return ended.finished(own(), residual, activation)
    sizes = (*a.shape[:-1], b.shape[1])
    if residual is not None and not is_like(residual, first, sizes):
        return ended.finished(_product(own, a, b, Ends(bias)), residual, activation)
    _remember_product(key, first, other, ends)
    call = eager.known(key)
    if call is not None and _is_short_at_once(call, ends):
        product = _short_product(call, own, a, b, ends)
        if product is not None:
            return product
    models, rows = models_of("gemm", first), first.reshape(-1, a.shape[-1])
    if ends is NOTHING:
        product = operators.mm(rows, other, *models)
    else:
        residual = None if residual is None else residual.reshape(-1, b.shape[1])
        product = ended.mm_ended(rows, other, bias, residual, activation, *models)
    return product.reshape(sizes)


def _activates_later(a: Tensor, b: Tensor, ends: Ends) -> bool:
    """Return whether PyTorch computes the activation: its gradient needs the value before, which a store drops."""
    return ends.activation not in ("", "relu") and eager.needs_gradients(a, b, *ends[:2])


def is_like(t: Tensor, x: Tensor, sizes: Sequence[int]) -> bool:
    return t.dtype == x.dtype and t.device == x.device and tuple(t.shape) == tuple(sizes)


def _remember_product(key: tuple[Hashable, ...] | None, a: Tensor, b: Tensor, ends: Ends) -> None:
    """Remember the problems of a product, with those of its gradients if they are needed."""
    if key is None or not eager.is_new(key):
        return
    a = a if a.dim() == 2 else a.reshape(-1, a.shape[-1])
    problem, graded = operators.mm_problem(a, b), eager.needs_gradients(a, b, *ends[:2])
    target = target_name(problem.op, "universal", a.dtype, a.device)
    is_stored = b.is_contiguous() or b.t().is_contiguous()
    is_stored = is_stored and all(t is None or t.is_contiguous() for t in ends[:2])
    wanted = [(target, problem, ends.kind)]
    if graded:
        wanted += [(target, p, EMPTY_KIND) for p in operators.mm_gradients(problem)]
    is_plain = is_stored and eager.are_plain(a, b, ends)
    geometry = () if is_plain and graded and eager.is_bias(ends) else None
    eager.remember(key, wanted, is_plain=is_plain and not graded, geometry=geometry)


def _short_product(call: eager.Known, own: Callable[[], Tensor], a: Tensor, b: Tensor, ends: Ends) -> Tensor | None:
    """Return the result of a known call on a short way, or None if the operator has to compute it."""
    has_end, runs_kernel = ends.residual is not None or ends.activation, eager.runs_kernels(call)
    if not (has_end and runs_kernel) and eager.is_left(call):
        return ended.finished(own(), ends.residual, ends.activation)
    if not runs_kernel:
        return None
    target, problem, kind = call.problems[0]
    if a.dim() == 2:
        rows = a
    else:
        rows = a.reshape(-1, a.shape[-1])
        if ends.residual is not None:
            ends = ends._replace(residual=ends.residual.reshape(-1, b.shape[1]))
    if problem.layout[0] == "r":  # type: ignore[attr-defined] # it is one of a product
        rows = rows.contiguous()
    product: Tensor | None
    if call.geometry is not None:
        product = eager.multiply(call, rows, b, ends.bias)
    else:
        product = ended.run_again(target, problem, kind, rows, b, ends)
    if product is None:
        product = ended.run_mm(target, problem, rows, b, ends)
    return product if product is None or a.dim() == 2 else product.view(*a.shape[:-1], b.shape[1])


def models_of(op: str, tensor: Tensor) -> tuple[str, ...]:
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
    if eager.is_transformed() or not (_is_dense(a) and _is_dense(b)):
        return False
    return bool(b.dtype == a.dtype and b.device == a.device and a.numel() > 0 and b.numel() > 0)


def _is_dense(t: Tensor) -> bool:
    """Return whether a tensor has its values in memory; sparse, nested, quantised and distributed ones have not."""
    is_wrapper = type(t) not in eager.PLAIN and is_traceable_wrapper_subclass(t)
    return t.layout is torch.strided and not t.is_nested and not is_wrapper


def autocast(t: Tensor) -> Tensor:
    """Cast a tensor as autocast casts the operands of PyTorch's own convolutions and products."""
    kind = t.device.type
    if kind == "meta":  # PyTorch's question fails
        return t
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
    strides, dilations = each_axis(ndim, stride), each_axis(ndim, dilation)
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
        chosen = None if isinstance(padding, str) else each_axis(ndim, padding)
        if chosen is None or min(chosen) < 0:
            return None
        pads = chosen
    fits = all(
        size + 2 * p + end >= d * (r - 1) + 1
        for size, p, end, d, r in zip(sizes, pads, end_pads, dilations, reach, strict=True)
    )
    return Geometry(strides, pads, end_pads, dilations) if fits else None


def each_axis(ndim: int, value: Sizes) -> list[int] | None:
    """Return one value per axis, or None for a wrong number of values."""
    if isinstance(value, int):
        return [value] * ndim
    values = list(value)
    if len(values) == 1:
        values *= ndim
    return values if len(values) == ndim else None

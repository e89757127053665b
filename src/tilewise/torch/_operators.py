"""PyTorch operators behind the drop-in functions: opaque to ``torch.compile``, differentiable any number of times.

Convolutions read channels-last tensors in place and copy others. A matrix product reads rows and columns as they are
stored, so a transposed operand is not copied. Each of the three convolutions is linear in both operands, and their
derivatives are the other two.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, partial
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from tilewise.dispatch import Dispatcher
from tilewise.errors import KernelError
from tilewise.kernels import NO_EPILOGUE, STORED_FORMATS, Epilogue, channels_last_view, channels_second_view
from tilewise.ops import GemmProblem, GroupedConvProblem, Problem
from tilewise.torch._serving import dispatcher_for, warn_no_kernel
from tilewise.torch._tracing import Choice, choose_while_tracing

_MAX_PROBLEMS = 4096
# Compilers keep compiled graphs on disk by the operators' arguments. `models` tells graphs of other models apart.
GEOMETRY = "SymInt[] stride, SymInt[] padding, SymInt[] dilation, SymInt groups, str models=''"

# stride, padding, dilation, groups, and the identity of the dispatchers if it was given
Geometry = tuple[Sequence[int], Sequence[int], Sequence[int], int, *tuple[str, ...]]
Gradients = tuple[Tensor | None, ...]  # one per argument of an operator
Multiply = Callable[[Tensor, Tensor], Tensor]


Inputs = tuple[Any, ...]  # arguments of an operator


class _Context(Protocol):
    """The parts of autograd's context that the operators use."""

    saved_tensors: tuple[Tensor, Tensor]
    needs_input_grad: Sequence[bool]
    letters: tuple[str, str]  # of a product
    rest: Inputs  # arguments of the operator after its two tensors

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...


_library = torch.library.Library("tilewise", "DEF")


def operator(name: str, arguments: str) -> Callable[[Callable[..., Tensor]], Callable[..., Tensor]]:
    """Define an operator as ``torch.library.custom_op`` does, without the checks that it makes in every call."""
    # Inductor stores operands in the order of the traced ones, as kernels read them; in another, each call copies them.
    tags = (torch.Tag.pt2_compliant_tag, torch.Tag.needs_fixed_stride_order)

    def define(compute: Callable[..., Tensor]) -> Callable[..., Tensor]:
        _library.define(f"{name}({arguments}) -> Tensor", tags=tags)
        _library.impl(name, compute, "CompositeExplicitAutograd")
        operator: Callable[..., Tensor] = getattr(torch.ops.tilewise, name).default
        return operator

    return define


@operator("conv", f"Tensor x, Tensor w, {GEOMETRY}")
def conv(x: Tensor, w: Tensor, *geometry: *Geometry) -> Tensor:
    """Return the convolution of `x` (N, C, [D,] H, W) with `w` (K, C/groups, [Z,] Y, X), channels-last."""
    return _serve(_CHOICES["conv"], (x, w), x, w, *geometry)


@operator("conv_bwd_data", f"Tensor dy, Tensor w, SymInt[] sizes, {GEOMETRY}")
def conv_bwd_data(dy: Tensor, w: Tensor, sizes: Sequence[int], *geometry: *Geometry) -> Tensor:
    """Return the gradient of :func:`conv` for its input, of shape `sizes`, channels-last."""
    return _serve(_CHOICES["conv_bwd_data"], (dy, w), dy, w, sizes, *geometry)


@operator("conv_bwd_weight", f"Tensor dy, Tensor x, SymInt[] sizes, {GEOMETRY}")
def conv_bwd_weight(dy: Tensor, x: Tensor, sizes: Sequence[int], *geometry: *Geometry) -> Tensor:
    """Return the gradient of :func:`conv` for its filter, of shape `sizes`, channels-last."""
    return _serve(_CHOICES["conv_bwd_weight"], (dy, x), dy, x, sizes, *geometry)


@operator("mm", "Tensor a, Tensor b, str models=''")
def mm(a: Tensor, b: Tensor, models: str = "") -> Tensor:
    """Return ``a @ b``, contiguous, for `a` (M, K) and `b` (K, N), each stored by rows or by columns."""
    problem = mm_problem(a, b)
    c = run(dispatcher_for("gemm", "universal", a), problem, stored(problem.layout, a, b))
    return torch.mm(a, b) if c is None else c


def stored(layout: str, a: Tensor, b: Tensor) -> list[Tensor]:
    """Return the operands as they are stored in memory."""
    return [t.contiguous() if letter == "r" else t.t() for t, letter in zip((a, b), layout, strict=False)]


def _serve(choice: Choice, operands: tuple[Tensor, Tensor], *args: Any) -> Tensor:
    """Compute a convolution's result with the dispatcher's kernel, or with PyTorch's own without one."""
    dispatcher = dispatcher_for(choice.op, choice.variant, operands[0])
    if dispatcher is not None:
        result = run(dispatcher, choice.problem(*args), map(channels_last, operands))
        if result is not None:
            return channels_second(result)
    return choice.own(*args)


def own_conv(
    x: Tensor, w: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int,
    *models: str,
) -> Tensor:  # fmt: skip
    """Return :func:`conv` by PyTorch's own call."""
    none = [0] * len(stride)
    y = torch.ops.aten.convolution(x, w, None, stride, padding, dilation, False, none, groups)
    return y.contiguous(memory_format=STORED_FORMATS[x.dim()])


def _own_bwd_data(dy: Tensor, w: Tensor, sizes: Sequence[int], *geometry: *Geometry) -> Tensor:
    own = torch.nn.grad.conv2d_input if dy.dim() == 4 else torch.nn.grad.conv3d_input
    return own(sizes, w, dy, *geometry[:4]).contiguous(memory_format=STORED_FORMATS[dy.dim()])


def _own_bwd_weight(dy: Tensor, x: Tensor, sizes: Sequence[int], *geometry: *Geometry) -> Tensor:
    own = torch.nn.grad.conv2d_weight if dy.dim() == 4 else torch.nn.grad.conv3d_weight
    return own(x, sizes, dy, *geometry[:4]).contiguous(memory_format=STORED_FORMATS[dy.dim()])


def _own_mm(a: Tensor, b: Tensor, models: str = "") -> Tensor:
    return torch.mm(a, b)


def _forward_problem(x: Tensor, w: Tensor, *geometry: *Geometry) -> Problem:
    return shaped_problem(x.shape, w.shape, *geometry)


def _bwd_data_problem(dy: Tensor, w: Tensor, sizes: Sequence[int], *geometry: *Geometry) -> Problem:
    return shaped_problem(sizes, w.shape, *geometry)


def _bwd_weight_problem(dy: Tensor, x: Tensor, sizes: Sequence[int], *geometry: *Geometry) -> Problem:
    return shaped_problem(x.shape, sizes, *geometry)


def mm_problem(a: Tensor, b: Tensor, models: str = "") -> GemmProblem:
    """Return the problem of :func:`mm`, in the layout in which it reads the operands."""
    return _product(a.shape[0], b.shape[1], a.shape[1], f"{''.join(letters(a, b))}r")


def letters(a: Tensor, b: Tensor) -> tuple[str, str]:
    """Return how a product reads its operands: ``r`` by rows, ``c`` by columns."""
    a_letter = "r" if a.is_contiguous() or not a.t().is_contiguous() else "c"
    return a_letter, "c" if b.t().is_contiguous() else "r"


def mm_gradients(p: GemmProblem) -> tuple[GemmProblem, GemmProblem]:
    """Return the problems of the gradients of a product, each stored as its operand is; see :func:`_mm_backward`."""
    a, b = p.layout[0], p.layout[1]
    flipped = {"r": "c", "c": "r"}  # the letter of a transposed operand
    for_a = _product(p.M, p.K, p.N, f"r{flipped[b]}r") if a == "r" else _product(p.K, p.M, p.N, f"{b}cr")
    for_b = _product(p.K, p.N, p.M, f"{flipped[a]}rr") if b == "r" else _product(p.N, p.K, p.M, f"c{a}r")
    return for_a, for_b


_CHOICES = {
    "conv": Choice("grouped_conv", "forward", _forward_problem, own_conv),
    "conv_bwd_data": Choice("grouped_conv", "bwd_data", _bwd_data_problem, _own_bwd_data),
    "conv_bwd_weight": Choice("grouped_conv", "bwd_weight", _bwd_weight_problem, _own_bwd_weight),
    "mm": Choice("gemm", "universal", mm_problem, _own_mm),
}


def run(
    dispatcher: Dispatcher | None, problem: Problem, operands: Iterable[Tensor], epilogue: Epilogue = NO_EPILOGUE
) -> Tensor | None:
    """Return the result of the dispatcher's kernel; None without a dispatcher or, after a warning, without a kernel."""
    if dispatcher is None:
        return None
    try:
        return dispatcher.run(problem, *operands, epilogue=epilogue)
    except KernelError as e:
        warn_no_kernel(dispatcher, e)
        return None


def channels_last(t: Tensor) -> Tensor:
    """Return the tensor with the channels as last axis, contiguous; a view if it is stored channels-last."""
    return channels_last_view(t.contiguous(memory_format=STORED_FORMATS[t.dim()]))


def channels_second(t: Tensor) -> Tensor:
    """Return a tensor whose last axis are the channels as PyTorch has it.

    To autograd it is no view, so that an activation may change it in place.
    """
    second: Tensor = channels_second_view(t).data
    return second


def _empty(like: Tensor, sizes: Sequence[int]) -> Tensor:
    return torch.empty(sizes, dtype=like.dtype, device=like.device, memory_format=STORED_FORMATS[len(sizes)])


def conv_result(
    x: Tensor, w: Tensor, stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int], groups: int,
    *models: str,
) -> Tensor:  # fmt: skip
    return _empty(x, result_sizes(x.shape, w.shape, stride, padding, dilation))


def result_sizes(
    x: Sequence[int], w: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int]
) -> tuple[int, ...]:
    """Return the shape of the convolution of an input and a filter of these shapes."""
    axes = zip(x[2:], w[2:], stride, padding, dilation, strict=True)
    return (x[0], w[0], *((size + 2 * p - d * (reach - 1) - 1) // s + 1 for size, reach, s, p, d in axes))


def _gradient(dy: Tensor, other: Tensor, sizes: Sequence[int], *geometry: *Geometry) -> Tensor:
    return _empty(dy, sizes)


def mm_result(a: Tensor, b: Tensor, models: str = "") -> Tensor:
    return a.new_empty((a.shape[0], b.shape[1]))


def shaped_problem(
    x: Sequence[int], w: Sequence[int], stride: Sequence[int], padding: Sequence[int], dilation: Sequence[int],
    groups: int, *models: str,
) -> GroupedConvProblem:  # fmt: skip
    """Return the problem of an input and a filter of these shapes."""
    return _conv_problem(tuple(x), tuple(w), tuple(stride), tuple(padding), tuple(dilation), groups)


@lru_cache(_MAX_PROBLEMS)
def _conv_problem(
    x: tuple[int, ...], w: tuple[int, ...], stride: tuple[int, ...], padding: tuple[int, ...],
    dilation: tuple[int, ...], groups: int,
) -> GroupedConvProblem:  # fmt: skip
    values: dict[str, Any] = {"N": x[0], "C": x[1], "K": w[0], "G": groups}
    for axis, size, reach, s, p, d in zip(
        "dhw"[3 - len(stride) :], x[2:], w[2:], stride, padding, dilation, strict=True
    ):
        values |= {f"{axis.upper()}i": size, {"d": "Z", "h": "Y", "w": "X"}[axis]: reach}
        values |= {f"stride_{axis}": s, f"pad_{axis}": p, f"dilation_{axis}": d}
    return GroupedConvProblem(**values)


_product = lru_cache(_MAX_PROBLEMS)(GemmProblem)


def _keep_for_backward(ctx: _Context, inputs: Inputs, output: Tensor) -> None:
    """Save both tensors for the backward pass, and the other arguments as they are."""
    ctx.save_for_backward(inputs[0], inputs[1])
    ctx.rest = inputs[2:]


def _keep_product(ctx: _Context, inputs: Inputs, output: Tensor) -> None:
    """Save the operands that the gradients read, and the other arguments as they are."""
    a, b, *rest = inputs
    ctx.save_for_backward(*needed(ctx.needs_input_grad, a, b))
    ctx.letters, ctx.rest = letters(a, b), tuple(rest)


def needed(wanted: Sequence[bool], a: Tensor, b: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return the operands of a product that its wanted gradients read: each reads the other one."""
    return (a if wanted[1] else None), (b if wanted[0] else None)


def _conv_backward(ctx: _Context, dy: Tensor) -> Gradients:
    x, w = ctx.saved_tensors
    dx = conv_bwd_data(dy, w, x.shape, *ctx.rest) if ctx.needs_input_grad[0] else None
    dw = conv_bwd_weight(dy, x, w.shape, *ctx.rest) if ctx.needs_input_grad[1] else None
    return dx, dw, *(None for _ in ctx.rest)


def _bwd_data_backward(ctx: _Context, g: Tensor) -> Gradients:
    dy, w = ctx.saved_tensors
    _, *geometry = ctx.rest
    grad_dy = conv(g, w, *geometry) if ctx.needs_input_grad[0] else None
    grad_w = conv_bwd_weight(dy, g, w.shape, *geometry) if ctx.needs_input_grad[1] else None
    return grad_dy, grad_w, *(None for _ in ctx.rest)


def _bwd_weight_backward(ctx: _Context, g: Tensor) -> Gradients:
    dy, x = ctx.saved_tensors
    _, *geometry = ctx.rest
    grad_dy = conv(x, g, *geometry) if ctx.needs_input_grad[0] else None
    grad_x = conv_bwd_data(dy, g, x.shape, *geometry) if ctx.needs_input_grad[1] else None
    return grad_dy, grad_x, *(None for _ in ctx.rest)


def _mm_backward(ctx: _Context, g: Tensor) -> Gradients:
    kept, multiply = Kept(*ctx.saved_tensors, ctx.letters), products(*ctx.rest)
    return *mm_gradient_tensors(kept, g, ctx.needs_input_grad, *multiply), *(None for _ in ctx.rest)


def products(*models: str) -> tuple[Multiply, Multiply]:
    """Return :func:`mm` for each of the gradients of a product."""
    multiply = partial(mm, models=models[0]) if models else mm
    return multiply, multiply


class Kept(NamedTuple):
    """The operands of a product for its gradients, see :func:`needed`, and how it read both, see :func:`letters`."""

    a: Tensor | None
    b: Tensor | None
    letters: Sequence[str]


def mm_gradient_tensors(
    kept: Kept, g: Tensor, wanted: Sequence[bool], for_a: Multiply, for_b: Multiply
) -> tuple[Tensor | None, Tensor | None]:
    """Return the gradients of :func:`mm` for both operands where they are wanted, given that of its result.

    Their products are those of :func:`mm_gradients`, computed by these functions.
    """
    da = db = None
    a, b, (a_letter, b_letter) = kept
    # A gradient is stored as its operand: another order costs a copy where gradients are summed up.
    if wanted[0] and b is not None:
        da = for_a(g, b.t()) if a_letter == "r" else for_a(b, g.t()).t()
    if wanted[1] and a is not None:
        db = for_b(a.t(), g) if b_letter == "r" else for_b(g.t(), a).t()
    return da, db


for _name, _fake, _keep, _backward in (
    ("conv", conv_result, _keep_for_backward, _conv_backward),
    ("conv_bwd_data", _gradient, _keep_for_backward, _bwd_data_backward),
    ("conv_bwd_weight", _gradient, _keep_for_backward, _bwd_weight_backward),
    ("mm", mm_result, _keep_product, _mm_backward),
):
    torch.library.register_fake(f"tilewise::{_name}", _fake)
    torch.library.register_autograd(f"tilewise::{_name}", _backward, setup_context=_keep)
    choose_while_tracing(_name, _CHOICES[_name])

"""Operators with an epilogue: ``activation(result + bias + residual)``, computed where the result is stored.

They are differentiable any number of times. The gradient of ReLU is taken from the saved result. That of another
activation needs the value before it: callers that want gradients call PyTorch's activation after the operator, and the
operators themselves compute that value once more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as own

from tilewise.dispatch import Dispatcher
from tilewise.kernels import NO_EPILOGUE, Epilogue, EpilogueKind, check_activation
from tilewise.ops import GemmProblem, Problem
from tilewise.torch import _operators as operators
from tilewise.torch._operators import GEOMETRY, Geometry, Gradients, Inputs
from tilewise.torch._serving import dispatcher_for, dispatcher_named
from tilewise.torch._tracing import Choice, choose_while_tracing

_ENDS = "Tensor? bias, Tensor? residual, str activation"
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": own.relu,
    "silu": own.silu,
    "gelu": own.gelu,
    "gelu_tanh": lambda x: own.gelu(x, approximate="tanh"),
    "hardswish": own.hardswish,
}
_GRADIENTS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {  # (gradient of the result, value before)
    "silu": torch.ops.aten.silu_backward.default,
    "gelu": torch.ops.aten.gelu_backward.default,
    "gelu_tanh": lambda g, x: torch.ops.aten.gelu_backward(g, x, approximate="tanh"),
    "hardswish": torch.ops.aten.hardswish_backward.default,
}


class Ends(NamedTuple):
    """The epilogue of a call; a plain tuple, which tracers of graphs know."""

    bias: Tensor | None = None
    residual: Tensor | None = None
    activation: str = ""
    in_one_launch: bool = False

    @property
    def kind(self) -> EpilogueKind:
        """The part that decides the program."""
        return EpilogueKind(self.bias is not None, self.residual is not None, self.activation, self.in_one_launch)


NOTHING = Ends()


def ends_of(bias: Tensor | None, residual: Tensor | None, activation: str | None, in_one_launch: bool = False) -> Ends:
    """Return the epilogue of a call.

    Raises:
        ProblemError: the activation is unknown.
    """
    if bias is None and residual is None and activation is None and not in_one_launch:
        return NOTHING
    check_activation(activation)
    return Ends(bias, residual, activation or "", in_one_launch)


class _Context(Protocol):
    """The parts of autograd's context that the operators use."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: Sequence[bool]
    activation: str
    letters: tuple[str, str]  # of a product
    rest: tuple[object, ...]  # arguments of the operator after the activation

    def save_for_backward(self, *tensors: Tensor | None) -> None: ...


@operators.operator("conv_ended", f"Tensor x, Tensor w, {_ENDS}, {GEOMETRY}")
def conv_ended(
    x: Tensor, w: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str, *geometry: *Geometry
) -> Tensor:
    """Return :func:`~tilewise.torch._operators.conv` with an epilogue; `residual` has the result's shape."""
    problem, ends = operators.shaped_problem(x.shape, w.shape, *geometry), Ends(bias, residual, activation)
    y = _run_conv(dispatcher_for("grouped_conv", "forward", x), problem, x, w, ends)
    return _own_conv(x, w, bias, residual, activation, *geometry) if y is None else y


@operators.operator("mm_ended", f"Tensor a, Tensor b, {_ENDS}, str models=''")
def mm_ended(
    a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str, models: str = ""
) -> Tensor:
    """Return :func:`~tilewise.torch._operators.mm` with an epilogue; `residual` has the result's shape."""
    problem, ends = operators.mm_problem(a, b), Ends(bias, residual, activation)
    c = _run_mm(dispatcher_for("gemm", "universal", a), problem, a, b, ends)
    return _own_mm(a, b, bias, residual, activation) if c is None else c


def run_again(target: str, problem: Problem, kind: EpilogueKind, a: Tensor, b: Tensor, ends: Ends) -> Tensor | None:
    """Return the result of a kernel that ran such tensors before, without checks; None where it has to be found."""
    dispatcher = dispatcher_named(target)
    call = None if dispatcher is None else dispatcher.direct(problem, a.get_device(), kind)
    if call is None:
        return None
    tensors = [a, b]
    if ends is not NOTHING:
        tensors += [t for t in ends[:2] if t is not None]
    try:
        return call(tensors)
    except Exception:  # the checked run meets it again, and launches the next in rank
        return None


def run_conv(target: str, problem: Problem, x: Tensor, w: Tensor, ends: Ends) -> Tensor | None:
    """Return :func:`conv_ended` without PyTorch's dispatch; None without a kernel."""
    return _run_conv(dispatcher_named(target), problem, x, w, ends)


def _run_conv(dispatcher: Dispatcher | None, problem: Problem, x: Tensor, w: Tensor, ends: Ends) -> Tensor | None:
    residual = None if ends.residual is None else operators.channels_last(ends.residual)
    epilogue = NO_EPILOGUE if ends is NOTHING else _stored_ends(ends._replace(residual=residual))
    y = operators.run(dispatcher, problem, map(operators.channels_last, (x, w)), epilogue)
    return None if y is None else operators.channels_second(y)


def run_mm(target: str, problem: Problem, a: Tensor, b: Tensor, ends: Ends) -> Tensor | None:
    """Return :func:`mm_ended` without PyTorch's dispatch; None without a kernel."""
    return _run_mm(dispatcher_named(target), problem, a, b, ends)


def _run_mm(dispatcher: Dispatcher | None, problem: Problem, a: Tensor, b: Tensor, ends: Ends) -> Tensor | None:
    assert isinstance(problem, GemmProblem)
    epilogue = NO_EPILOGUE if ends is NOTHING else _stored_ends(ends)
    return operators.run(dispatcher, problem, operators.stored(problem.layout, a, b), epilogue)


def finished(y: Tensor, residual: Tensor | None, activation: str) -> Tensor:
    """Return ``activation(y + residual)`` by PyTorch's functions."""
    y = y if residual is None else y + residual
    return ACTIVATIONS[activation](y) if activation else y


def _stored_ends(ends: Ends) -> Epilogue:
    bias, residual = (None if t is None else t.contiguous() for t in ends[:2])
    return Epilogue(bias, residual, ends.activation or None, ends.in_one_launch)


def _own_conv(
    x: Tensor, w: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str, *geometry: *Geometry
) -> Tensor:
    y = operators.own_conv(x, w, *geometry)
    if bias is not None:  # a pass that compilers fuse with those after it
        y = y + bias.reshape(-1, *(1,) * (x.dim() - 2))
    return finished(y, residual, activation)


def _own_mm(
    a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str, models: str = ""
) -> Tensor:
    c = torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)
    return finished(c, residual, activation)


def _kind(
    a: Tensor, b: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str, *_: object
) -> EpilogueKind:
    return Ends(bias, residual, activation).kind


def _conv_problem(
    x: Tensor, w: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str, *geometry: *Geometry
) -> Problem:
    return operators.shaped_problem(x.shape, w.shape, *geometry)


def _mm_problem(a: Tensor, b: Tensor, *rest: object) -> Problem:
    return operators.mm_problem(a, b)


def _conv_result(
    x: Tensor, w: Tensor, bias: Tensor | None, residual: Tensor | None, activation: str, *geometry: *Geometry
) -> Tensor:
    return operators.conv_result(x, w, *geometry)


def _mm_result(a: Tensor, b: Tensor, *rest: object) -> Tensor:
    return operators.mm_result(a, b)


def _keep_conv(ctx: _Context, inputs: Inputs, output: Tensor) -> None:
    _keep_for_backward(ctx, inputs, output, is_product=False)


def _keep_product(ctx: _Context, inputs: Inputs, output: Tensor) -> None:
    ctx.letters = operators.letters(*inputs[:2])
    _keep_for_backward(ctx, inputs, output, is_product=True)


def _keep_for_backward(ctx: _Context, inputs: Inputs, output: Tensor, *, is_product: bool) -> None:
    """Save the tensors that the gradients read, and the result where its activation's gradient follows from it."""
    a, b, bias, residual, activation, *rest = inputs
    is_relu = activation == "relu"
    computes_again = activation and not is_relu
    operands = operators.needed(ctx.needs_input_grad, a, b) if is_product and not computes_again else (a, b)
    ctx.save_for_backward(
        *operands, *((bias, residual) if computes_again else (None, None)), output if is_relu else None
    )
    ctx.activation, ctx.rest = str(activation), tuple(rest)


def _gradient_before(ctx: _Context, saved: tuple[Tensor, ...], g: Tensor, operator: Callable[..., Tensor]) -> Tensor:
    """Return the gradient of the value before the activation."""
    a, b, bias, residual, y = saved
    if not ctx.activation:
        return g
    if ctx.activation == "relu":
        return torch.ops.aten.threshold_backward(g, y, 0)
    return _GRADIENTS[ctx.activation](g, operator(a, b, bias, residual, "", *ctx.rest))


def _conv_backward(ctx: _Context, dy: Tensor) -> Gradients:
    x, w, *_ = saved = ctx.saved_tensors  # checkpoints and hooks allow one reading
    wanted, g = ctx.needs_input_grad, _gradient_before(ctx, saved, dy, conv_ended)
    dx = operators.conv_bwd_data(g, w, x.shape, *ctx.rest) if wanted[0] else None
    dw = operators.conv_bwd_weight(g, x, w.shape, *ctx.rest) if wanted[1] else None
    db = g.sum([0, *range(2, g.dim())]) if wanted[2] else None
    return dx, dw, db, g if wanted[3] else None, None, *(None for _ in ctx.rest)


def _mm_backward(ctx: _Context, dy: Tensor) -> Gradients:
    a, b, *_ = saved = ctx.saved_tensors  # as above
    wanted, g = ctx.needs_input_grad, _gradient_before(ctx, saved, dy, mm_ended)
    kept = operators.Kept(a, b, ctx.letters)
    da, db = operators.mm_gradient_tensors(kept, g, wanted, *operators.products(*map(str, ctx.rest)))
    return da, db, g.sum(0) if wanted[2] else None, g if wanted[3] else None, None, *(None for _ in ctx.rest)


for _name, _fake, _keep, _backward, _choice in (
    (
        "conv_ended",
        _conv_result,
        _keep_conv,
        _conv_backward,
        Choice("grouped_conv", "forward", _conv_problem, _own_conv, _kind),
    ),
    (
        "mm_ended",
        _mm_result,
        _keep_product,
        _mm_backward,
        Choice("gemm", "universal", _mm_problem, _own_mm, _kind),
    ),
):
    torch.library.register_fake(f"tilewise::{_name}", _fake)
    torch.library.register_autograd(f"tilewise::{_name}", _backward, setup_context=_keep)
    choose_while_tracing(_name, _choice)

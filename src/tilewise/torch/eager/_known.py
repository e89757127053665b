"""The calls that were made before.

A call is remembered by everything that decides its problems. Where PyTorch computes all of them, its own function is
called straight away; elsewhere the kernel is, without PyTorch's dispatch of operators in between. Who computes is asked
again each time, as another model or dispatcher may serve since; that is a look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tilewise.kernels import EpilogueKind
from tilewise.ops import Problem
from tilewise.torch._ended import NOTHING, Ends
from tilewise.torch._operators import Geometry
from tilewise.torch._serving import DEVICE_TYPE, is_left_to_pytorch

PLAIN = (Tensor, torch.nn.Parameter)  # not fake tensors, nor those of other subclasses

_MAX_CALLS = 4096


Wanted = tuple[str, Problem, EpilogueKind]


class Known(NamedTuple):
    """A call that was made before.

    Attributes:
        problems: (target, problem, kind of epilogue) of the result, and of the gradients if they are needed.
        is_plain: whether the kernel may be run without the operator: no gradient, no cast, no copy of an operand.
        geometry: arguments of the operators that compute the gradients, where they may be left out likewise, and the
            epilogue is a bias at most; else None.
    """

    problems: tuple[Wanted, ...]
    is_plain: bool
    geometry: Geometry | tuple[()] | None


_calls: dict[tuple[Hashable, ...], Known] = {}


def key_of(a: Tensor, b: Tensor, ends: Ends, arguments: Hashable = None) -> tuple[Hashable, ...] | None:
    """Return all of a call that decides which kernel computes it; None while a graph is traced."""
    if torch.compiler.is_compiling():
        return None
    try:
        first = (*_traits(a), *_traits(b))
    except RuntimeError:  # nested tensors have neither sizes nor strides
        return None
    cast = torch.get_autocast_dtype(DEVICE_TYPE) if _casts() else None
    if ends is NOTHING:
        return (*first, cast, arguments, needs_gradients(a, b))
    bias, residual, activation, in_one_launch = ends
    added, passed = (None if t is None else _traits(t) for t in (bias, residual))
    graded = needs_gradients(a, b, bias, residual)
    return (*first, cast, arguments, graded, added, passed, activation, in_one_launch)


def _traits(t: Tensor) -> tuple[Hashable, ...]:
    return type(t), t.shape, t.stride(), t.dtype, t.get_device()  # type: ignore[return-value] # classes are hashable


def are_plain(a: Tensor, b: Tensor, ends: Ends) -> bool:
    """Return whether tensors are read as they are: no cast, and no class that computes in its own way."""
    return not _casts() and all(t is None or type(t) in PLAIN for t in (a, b, *ends[:2]))


def _casts() -> bool:
    return bool(torch.is_autocast_enabled(DEVICE_TYPE))


def is_bias(ends: Ends) -> bool:
    """Return whether an epilogue is a bias at most."""
    return ends.residual is None and not ends.activation


def needs_gradients(*tensors: Tensor | None) -> bool:
    """Return whether autograd records a call with these tensors."""
    return bool(torch.is_grad_enabled() and any(t is not None and t.requires_grad for t in tensors))


def known(key: tuple[Hashable, ...] | None) -> Known | None:
    """Return the record of a call, or None for a new one."""
    if key is None:
        return None
    try:
        return _calls.get(key)
    except TypeError:  # sizes in a list cannot be looked up
        return None


def is_left(call: Known) -> bool:
    """Return whether PyTorch computes all problems of a call now."""
    for target, problem, kind in call.problems:  # noqa: SIM110 # all() takes a microsecond longer
        if not is_left_to_pytorch(target, problem, kind):
            return False
    return True


def runs_kernels(call: Known) -> bool:
    """Return whether a call's kernels may be run without operators now."""
    return (call.is_plain or call.geometry is not None) and not is_watched()


def is_watched() -> bool:
    """Return whether something has to see operators: a dispatch mode, a transform of functions, or a tracer."""
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._get_tracing_state() is not None
        or torch._C._are_functorch_transforms_active()
        or forward_ad._current_level >= 0
    )


def is_transformed() -> bool:
    """Return whether a call gives derivatives in forward mode, or is transformed: operators of ours have no such rules.

    A compiler traces transforms, and asks here; it has no forward mode of its own.
    """
    if torch._C._are_functorch_transforms_active():
        return True
    return not torch.compiler.is_compiling() and forward_ad._current_level >= 0


def is_new(key: tuple[Hashable, ...] | None) -> bool:
    """Return whether the call can be remembered, and was not yet."""
    try:
        return key is not None and key not in _calls
    except TypeError:  # as above
        return False


def remember(
    key: tuple[Hashable, ...], problems: Iterable[Wanted], *, is_plain: bool,
    geometry: Geometry | tuple[()] | None = None,
) -> None:  # fmt: skip
    """Remember a new call, which PyTorch's function would compute with the same result."""
    if len(_calls) >= _MAX_CALLS:
        _calls.clear()
    _calls[key] = Known(tuple(problems), is_plain, geometry)


def in_benchmark_mode(compute: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Return the result of PyTorch's function, with cuDNN in the mode in which it was measured."""
    if torch._C._get_cudnn_benchmark():
        return compute(*arguments)
    torch._C._set_cudnn_benchmark(True)  # `torch.backends` refuses where flags may not be set globally
    try:
        return compute(*arguments)
    finally:
        torch._C._set_cudnn_benchmark(False)

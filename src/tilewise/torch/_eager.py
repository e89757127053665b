"""Repeated eager calls take a short way, as their first found out all that decides them.

A call is remembered by everything that decides its problems. Where PyTorch computes all of them, its own function is
called straight away; where no gradient is needed, the kernel is, without PyTorch's dispatch of operators in between.
Who computes is asked again each time, as another model or dispatcher may serve since; that is a look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad

from tilewise.kernels import EpilogueKind
from tilewise.ops import Problem
from tilewise.torch._serving import is_left_to_pytorch

_MAX_CALLS = 4096


Wanted = tuple[str, Problem, EpilogueKind]


class Known(NamedTuple):
    """A call that was made before.

    Attributes:
        problems: (target, problem, kind of epilogue) of the result, and of the gradients if they are needed.
        is_plain: whether the kernel may be run without the operator: no gradient, no cast, no copy of an operand.
    """

    problems: tuple[Wanted, ...]
    is_plain: bool


_calls: dict[tuple[Hashable, ...], Known] = {}


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

    Compilers trace those of their own.
    """
    if torch.compiler.is_compiling():
        return False
    return bool(torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0)


def is_new(key: tuple[Hashable, ...] | None) -> bool:
    """Return whether the call can be remembered, and was not yet."""
    try:
        return key is not None and key not in _calls
    except TypeError:  # as above
        return False


def remember(key: tuple[Hashable, ...], problems: Iterable[Wanted], *, is_plain: bool) -> None:
    """Remember a new call, which PyTorch's function would compute with the same result."""
    if len(_calls) >= _MAX_CALLS:
        _calls.clear()
    _calls[key] = Known(tuple(problems), is_plain)


def in_benchmark_mode(compute: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Return the result of PyTorch's function, with cuDNN in the mode in which it was measured."""
    if torch.backends.cudnn.benchmark:
        return compute(*arguments)
    torch.backends.cudnn.benchmark = True
    try:
        return compute(*arguments)
    finally:
        torch.backends.cudnn.benchmark = False

"""Operators whose computation PyTorch does by itself leave the graphs of ``torch.compile`` for PyTorch's own calls.

An operator of tilewise is opaque: a compiler fuses nothing into it. Where the selection is a call that PyTorch makes by
itself, the traced graph therefore gets that call. The rule acts while AOTAutograd traces with known sizes, so forward
and backward passes are decided one by one, for every compiler behind AOTAutograd. With sizes that are symbols the
operator stays, and decides when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.fx.experimental.proxy_tensor import ProxyTorchDispatchMode

from tilewise.kernels import EMPTY_KIND, EpilogueKind
from tilewise.ops import Problem
from tilewise.torch._serving import is_left_to_pytorch, target_name


class Choice(NamedTuple):
    """The choice that an operator makes.

    Attributes:
        op, variant: of the target.
        problem: returns the problem of the operator's arguments.
        kind: returns the kind of the result's epilogue.
        own: computes the operator's result with PyTorch's own calls.
    """

    op: str
    variant: str
    problem: Callable[..., Problem]
    own: Callable[..., Tensor]
    kind: Callable[..., EpilogueKind] = lambda *args: EMPTY_KIND


def choose_while_tracing(name: str, choice: Choice) -> None:
    """Let a traced graph have PyTorch's own call in place of the operator `name` wherever the choice falls on it."""

    def trace(
        mode: ProxyTorchDispatchMode, function: Any, types: Any, args: Sequence[Any], kwargs: dict[str, Any] | None
    ) -> Tensor:
        known = all(type(size) is int for size in _sizes(args))
        if known:
            target = target_name(choice.op, choice.variant, args[0].dtype, args[0].device)
            if is_left_to_pytorch(target, choice.problem(*args), choice.kind(*args)):
                with mode:
                    return choice.own(*args)
        result: Tensor = mode.__torch_dispatch__(function, types, args, kwargs)
        return result

    torch.library.register_torch_dispatch(f"tilewise::{name}", ProxyTorchDispatchMode, trace)


def _sizes(args: Sequence[Any]) -> Iterator[Any]:
    """Yield all sizes among the arguments of an operator; strides of tensors as well, which decide layouts."""
    for argument in args:
        if isinstance(argument, Tensor):
            yield from (*argument.shape, *argument.stride())
        elif isinstance(argument, list | tuple):
            yield from argument
        elif argument is not None and not isinstance(argument, str):
            yield argument

"""Eager calls that PyTorch computes by itself go to its function straight away, before problems are built.

A call is remembered by everything that decides its problems. Whether PyTorch computes them is asked again each time, as
another model or dispatcher may serve since; that is a look-up.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from typing import Any

import torch
from torch import Tensor

from tilewise.ops import Problem
from tilewise.torch._serving import is_left_to_pytorch

_MAX_CALLS = 4096
_problems: dict[tuple[Hashable, ...], tuple[tuple[str, Problem], ...]] = {}  # by call: (target, problem)


def is_left(key: tuple[Hashable, ...] | None) -> bool:
    """Return whether the call was remembered, and PyTorch computes all of its problems now."""
    if key is None:
        return False
    try:
        problems = _problems.get(key)
    except TypeError:  # sizes in a list cannot be looked up
        return False
    if problems is None:
        return False
    for target, problem in problems:  # noqa: SIM110 # all() takes a microsecond longer
        if not is_left_to_pytorch(target, problem):
            return False
    return True


def is_new(key: tuple[Hashable, ...] | None) -> bool:
    """Return whether the call can be remembered, and was not yet."""
    try:
        return key is not None and key not in _problems
    except TypeError:  # as above
        return False


def remember(key: tuple[Hashable, ...], problems: Iterable[tuple[str, Problem]]) -> None:
    """Remember the problems of a new call, which PyTorch's function would compute with the same result."""
    if len(_problems) >= _MAX_CALLS:
        _problems.clear()
    _problems[key] = tuple(problems)


def in_benchmark_mode(compute: Callable[..., Tensor], *arguments: Any) -> Tensor:
    """Return the result of PyTorch's function, with cuDNN in the mode in which it was measured."""
    if torch.backends.cudnn.benchmark:
        return compute(*arguments)
    torch.backends.cudnn.benchmark = True
    try:
        return compute(*arguments)
    finally:
        torch.backends.cudnn.benchmark = False

"""Repeated eager calls take a short way, as their first found out all that decides them.

Used by the functions of :mod:`tilewise.torch`. Needs torch.
"""

from __future__ import annotations

from tilewise.torch.eager._gradients import convolve, multiply
from tilewise.torch.eager._known import (
    PLAIN,
    Known,
    Wanted,
    are_plain,
    in_benchmark_mode,
    is_bias,
    is_left,
    is_new,
    is_transformed,
    is_watched,
    key_of,
    known,
    needs_gradients,
    remember,
    runs_kernels,
)

__all__ = [
    "PLAIN",
    "Known",
    "Wanted",
    "are_plain",
    "convolve",
    "in_benchmark_mode",
    "is_bias",
    "is_left",
    "is_new",
    "is_transformed",
    "is_watched",
    "key_of",
    "known",
    "multiply",
    "needs_gradients",
    "remember",
    "runs_kernels",
]

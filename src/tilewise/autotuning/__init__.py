"""Kernels of the user's own: a decorator that takes ``triton.autotune``'s arguments, for Triton kernels and callables.

Takes a function and its configurations; each call runs with the configuration that is fastest for its key, as earlier
measurements, a model, or a measurement in the call say. Records lie in the user's cache and can be exported as
measurement tables. Imports neither Triton nor torch, unless a call uses them. Used by applications and the commands.
"""

from __future__ import annotations

from tilewise.autotuning._chooser import Choice
from tilewise.autotuning._decorator import autotune
from tilewise.autotuning._tunable import Tunable

__all__ = [
    "Choice",
    "Tunable",
    "autotune",
]

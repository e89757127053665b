"""Selections, which a dispatcher answers with, and the decisions behind them."""

from __future__ import annotations

import operator
from typing import Any, Literal, NamedTuple, SupportsIndex, cast

from tilewise.errors import ConfigError

Why = Literal["model", "cache", "measured", "fallback"]


class Selection(NamedTuple):
    """The kernel to launch, and how it was chosen.

    Attributes:
        kernel: the kernel, a :class:`tilewise.kernels.KernelBase` of the pool's backend.
        kernel_name: its canonical name.
        predicted_tflops: the model's prediction; None if no model ranked the kernel.
        why: ``model``: the highest prediction; ``measured``: the fastest in a measurement just made; ``cache``: the
            fastest in an earlier measurement on this machine; ``fallback``: the first supported kernel of the pool.
        measured_ms: the kernel's time in milliseconds; None if it was not measured.
    """

    kernel: Any
    kernel_name: str
    predicted_tflops: float | None
    why: Why
    measured_ms: float | None = None


class Comparison(NamedTuple):
    """The pick for a problem beside the best call that PyTorch makes by itself.

    Attributes:
        pick: the fastest kernel measured on this machine, or else the one that the model puts first.
        pick_ms: its time, with the pass that it leaves of an epilogue; None without a model.
        pytorch_ms: the time of PyTorch's own call, without an epilogue; None without a model, or if the pool has no
            such call that supports the problem.
        is_pytorch: whether the pick is such a call.
        is_measured: whether both times are measured and not predicted.
    """

    pick: Selection
    pick_ms: float | None
    pytorch_ms: float | None
    is_pytorch: bool
    is_measured: bool = False


class Decision(NamedTuple):
    """A selection and the circumstances of its choice.

    Attributes:
        selection: the selection.
        cause: why no better founded choice was possible; None if nothing prevented it.
        lasting: whether the selection may be remembered for the problem.
    """

    selection: Selection
    cause: str | None = None
    lasting: bool = True


def checked_count(top_k: object) -> int:
    """Return `top_k` as an int of 1 or more; NumPy's integers are accepted.

    Raises:
        ConfigError: it is something else.
    """
    try:
        count = 0 if isinstance(top_k, bool) else operator.index(cast(SupportsIndex, top_k))
    except TypeError:  # no whole number, or an array of several elements
        count = 0
    if count >= 1:
        return count
    raise ConfigError(f"top_k must be a whole number and at least 1, got {top_k!r}; use None for all kernels")

"""What a dispatcher answers, and what it knows about the answer."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

Why = Literal["model", "cache", "measured", "fallback"]


class Selection(NamedTuple):
    """The kernel to launch, and who decided.

    Attributes:
        kernel: the kernel.
        kernel_name: its canonical name.
        predicted_tflops: None where no model was asked.
        why: ``model``: the highest prediction; ``measured``: the fastest, measured just now; ``cache``: the fastest,
            measured before on this machine; ``fallback``: the first of the pool that supports the problem.
        measured_ms: the kernel's time; None where it was not measured.
    """

    kernel: Any
    kernel_name: str
    predicted_tflops: float | None
    why: Why
    measured_ms: float | None = None


class Decision(NamedTuple):
    """A selection with how it came about.

    Attributes:
        selection: the answer.
        cause: what stood in the way of a better founded one; None: nothing did.
        lasting: whether the same problem may be answered alike from now on.
    """

    selection: Selection
    cause: str | None = None
    lasting: bool = True

"""The project's own kernels, in Triton: their type, rules and pipelines.

It takes kernels and problems, and gives reasons, traits and sizes. Everything here imports only NumPy and the standard
library, as a dispatcher needs it; the code that imports triton lies in ``programs``.
"""

from __future__ import annotations

from tilewise.kernels.triton._backend import TRITON
from tilewise.kernels.triton._kernel import Kernel
from tilewise.kernels.triton._limits import BARRIER_BYTES, WARPGROUP_ROWS
from tilewise.kernels.triton._rules import OP_RULES, TRITON_DTYPES, illegal, tapwise_columns
from tilewise.kernels.triton._shapes import load_widths
from tilewise.kernels.triton.pipelines import PIPELINES, Implementation, Pipeline, pipelines_of

__all__ = [
    "BARRIER_BYTES",
    "OP_RULES",
    "PIPELINES",
    "TRITON",
    "TRITON_DTYPES",
    "WARPGROUP_ROWS",
    "Implementation",
    "Kernel",
    "Pipeline",
    "illegal",
    "load_widths",
    "pipelines_of",
    "tapwise_columns",
]

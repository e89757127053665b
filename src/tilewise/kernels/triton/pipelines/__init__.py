"""The registry of Triton's pipelines: one file and one line each.

Rules, features, compilation and launches ask :data:`PIPELINES`. The files import only NumPy and the standard library;
:func:`implementation_of` imports the Triton programs of a pipeline on first use. How to add one:
``docs/adding-a-pipeline.md``.
"""

from __future__ import annotations

from tilewise.kernels.triton._pipeline import CONV_VARIANTS, Implementation, Pipeline, implementation_of
from tilewise.kernels.triton.pipelines._registry import PIPELINES, pipelines_of

__all__ = [
    "CONV_VARIANTS",
    "PIPELINES",
    "Implementation",
    "Pipeline",
    "implementation_of",
    "pipelines_of",
]

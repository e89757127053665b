"""Selection without Python: export of a model as one file, and the C library that reads it.

The library is the ranking core behind a C API (include/tilewise.h, docs/c-api.md), so Python and C select the same
kernel. ``python -m tilewise.capi`` exports models and compiles the library. Imports :mod:`tilewise.model`, `kernels`
and `ops`.
"""

from __future__ import annotations

from tilewise.capi._build import build, build_helper
from tilewise.capi._export_file import export_model, model_bytes

__all__ = [
    "build",
    "build_helper",
    "export_model",
    "model_bytes",
]

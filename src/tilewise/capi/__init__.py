"""Selection without Python: a model as one file, and the C library that reads it (include/tilewise.h, docs/c-api.md).

The library is the ranking core behind a C API, so both pick the same kernel; ``python -m tilewise.capi`` makes both.
"""

from tilewise.capi.build import build, build_helper
from tilewise.capi.file import export_model, model_bytes

__all__ = ["build", "build_helper", "export_model", "model_bytes"]

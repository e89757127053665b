"""The ranking core: formulas are traced once, then evaluated with the trees in C.

`Trace` and `Compiler` turn NumPy formulas into bytecode; `compiled_core` gives the module that runs it, or None.
Imports NumPy and :mod:`tilewise.errors` only. Used by :mod:`tilewise.model`; docs/native-core.md explains the design.
"""

from __future__ import annotations

from tilewise.core._compiler import Compiler
from tilewise.core._native import compiled_core
from tilewise.core._trace import Symbol, Text, Trace, UntraceableError

__all__ = [
    "Compiler",
    "Symbol",
    "Text",
    "Trace",
    "UntraceableError",
    "compiled_core",
]

"""MIOpen's solvers: candidates with a name and no parameters, measured elsewhere. They cannot run here.

It takes solvers' names, and gives their backend. Everything here imports only NumPy and the standard library.
"""

from __future__ import annotations

from tilewise.kernels.miopen._backend import MIOPEN, NAME, Solver

__all__ = ["MIOPEN", "NAME", "Solver"]

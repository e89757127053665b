"""Building of CK Tile's kernels: a library for each instance, from a checkout and a compiler, without a GPU.

Takes instances, a checkout of Composable Kernel and a HIP compiler; gives one shared library per instance with CK
Tile's C API, its record and its log. Finished libraries are kept in a cache by the contents
of all that they depend on, so a killed build goes on where it stopped.
"""

from __future__ import annotations

from tilewise.collect.building._build import BuildReport, BuildSettings, Built, build_libraries
from tilewise.collect.building._checkout import Checkout
from tilewise.collect.building._compiler import Compiler
from tilewise.collect.building._recipe import unbuildable_reason

__all__ = [
    "BuildReport",
    "BuildSettings",
    "Built",
    "Checkout",
    "Compiler",
    "build_libraries",
    "unbuildable_reason",
]

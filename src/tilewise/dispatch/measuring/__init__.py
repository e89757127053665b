"""Measuring on the spot: which kernels to measure for a request, on which machine, and a cache of the results.

Takes a problem and a pool and gives measured times; the cache can be merged, pruned and exported as training data.
Imports NumPy and the standard library; members load lazily, as exporting needs pyarrow. Measuring runs in a process of
its own. Used by the dispatcher, shadowing and ``tilewise cache``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewise._lazy import lazy_face

if TYPE_CHECKING:
    from tilewise.dispatch.measuring._code_hash import code_text as code_text
    from tilewise.dispatch.measuring._export_measured import export_measurements as export_measurements
    from tilewise.dispatch.measuring._export_measured import read_exported as read_exported
    from tilewise.dispatch.measuring._fallback import Fallback as Fallback
    from tilewise.dispatch.measuring._library_measurer import LibraryMeasurer as LibraryMeasurer
    from tilewise.dispatch.measuring._machine import Machine as Machine
    from tilewise.dispatch.measuring._machine import kernels_hash as kernels_hash
    from tilewise.dispatch.measuring._measure import GpuMeasurer as GpuMeasurer
    from tilewise.dispatch.measuring._measure import MeasurementJob as MeasurementJob
    from tilewise.dispatch.measuring._measure import Measurer as Measurer
    from tilewise.dispatch.measuring._measure import Outcomes as Outcomes
    from tilewise.dispatch.measuring._measure import ReplayMeasurer as ReplayMeasurer
    from tilewise.dispatch.measuring._measure import is_capturing as is_capturing
    from tilewise.dispatch.measuring._measure import local_measurer as local_measurer
    from tilewise.dispatch.measuring._merge_caches import entries_by_context as entries_by_context
    from tilewise.dispatch.measuring._merge_caches import find_measured_folder as find_measured_folder
    from tilewise.dispatch.measuring._merge_caches import merge_caches as merge_caches
    from tilewise.dispatch.measuring._merge_caches import prune_cache as prune_cache

__all__, __getattr__ = lazy_face(
    __name__,
    {
        "_code_hash": ("code_text",),
        "_export_measured": (
            "export_measurements",
            "read_exported",
        ),
        "_fallback": ("Fallback",),
        "_library_measurer": ("LibraryMeasurer",),
        "_machine": (
            "Machine",
            "kernels_hash",
        ),
        "_measure": (
            "GpuMeasurer",
            "MeasurementJob",
            "Measurer",
            "Outcomes",
            "ReplayMeasurer",
            "is_capturing",
            "local_measurer",
        ),
        "_merge_caches": (
            "entries_by_context",
            "find_measured_folder",
            "merge_caches",
            "prune_cache",
        ),
    },
)

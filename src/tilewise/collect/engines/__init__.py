"""Engines, which measure one problem at a time: on a GPU, through CK Tile's libraries, or by replaying a table.

Takes a plan and a device index; gives one outcome per kernel. The worker processes of :mod:`tilewise.collect` own one
engine each. Imports the standard library, NumPy, pyarrow, torch and triton only, each when a member needs it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewise._lazy import lazy_face

if TYPE_CHECKING:
    from tilewise.collect.engines._ck_libraries import FoundKernels as FoundKernels
    from tilewise.collect.engines._ck_libraries import find_library_kernels as find_library_kernels
    from tilewise.collect.engines._ck_libraries import find_plan_kernels as find_plan_kernels
    from tilewise.collect.engines._engine import REGIME as REGIME
    from tilewise.collect.engines._engine import BeginCallback as BeginCallback
    from tilewise.collect.engines._engine import Device as Device
    from tilewise.collect.engines._engine import Engine as Engine
    from tilewise.collect.engines._engine import EngineFactory as EngineFactory
    from tilewise.collect.engines._engine import EngineLostError as EngineLostError
    from tilewise.collect.engines._gpu_engine import GpuEngine as GpuEngine
    from tilewise.collect.engines._nvml import describe_gpu as describe_gpu
    from tilewise.collect.engines._nvml import driver_version as driver_version
    from tilewise.collect.engines._replay_table import ReplayTable as ReplayTable
    from tilewise.collect.engines._replay_table import replay_engine as replay_engine
    from tilewise.collect.engines._stopwatch import HEAD_START_CLEARS as HEAD_START_CLEARS
    from tilewise.collect.engines._stopwatch import GraphStopwatch as GraphStopwatch
    from tilewise.collect.engines._stopwatch import L2Cache as L2Cache
    from tilewise.collect.engines._stopwatch import capture_graph as capture_graph

__all__, __getattr__ = lazy_face(
    __name__,
    {
        "_ck_libraries": (
            "FoundKernels",
            "find_library_kernels",
            "find_plan_kernels",
        ),
        "_engine": (
            "BeginCallback",
            "Device",
            "Engine",
            "EngineFactory",
            "EngineLostError",
            "REGIME",
        ),
        "_gpu_engine": ("GpuEngine",),
        "_nvml": (
            "describe_gpu",
            "driver_version",
        ),
        "_replay_table": (
            "ReplayTable",
            "replay_engine",
        ),
        "_stopwatch": (
            "GraphStopwatch",
            "HEAD_START_CLEARS",
            "L2Cache",
            "capture_graph",
        ),
    },
)

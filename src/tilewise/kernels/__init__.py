"""Kernels: their names, legality and support rules, pools of candidates, and the contract of a backend.

Takes configurations, problems and hardware figures; gives kernels, reasons, masks and pools.
Imports `arch` and `ops`, only NumPy besides: the Triton programs (`triton.programs`) are imported on first use.
Used by every package above.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewise._lazy import lazy_face

if TYPE_CHECKING:
    from tilewise.kernels._backends import BACKENDS as BACKENDS
    from tilewise.kernels._backends import PROGRAM_VERSIONS as PROGRAM_VERSIONS
    from tilewise.kernels._backends import backend as backend
    from tilewise.kernels._backends import backend_of as backend_of
    from tilewise.kernels._backends import backend_of_columns as backend_of_columns
    from tilewise.kernels._backends import backend_of_kernels as backend_of_kernels
    from tilewise.kernels._backends import backend_of_target as backend_of_target
    from tilewise.kernels._backends import compared_versions as compared_versions
    from tilewise.kernels._backends import illegal as illegal
    from tilewise.kernels._backends import is_half_aligned as is_half_aligned
    from tilewise.kernels._backends import supported_mask as supported_mask
    from tilewise.kernels._backends import together as together
    from tilewise.kernels._backends import unsupported as unsupported
    from tilewise.kernels._contract import BACKEND_COLUMN as BACKEND_COLUMN
    from tilewise.kernels._contract import FILL as FILL
    from tilewise.kernels._contract import Backend as Backend
    from tilewise.kernels._contract import FieldKind as FieldKind
    from tilewise.kernels._contract import KernelBase as KernelBase
    from tilewise.kernels._contract import KernelValue as KernelValue
    from tilewise.kernels._contract import ParsedName as ParsedName
    from tilewise.kernels._contract import RegistryEntry as RegistryEntry
    from tilewise.kernels._contract import Rules as Rules
    from tilewise.kernels._contract import TileKernel as TileKernel
    from tilewise.kernels._defined import DefinedKernel as DefinedKernel
    from tilewise.kernels._defined import kernel_type as kernel_type
    from tilewise.kernels._epilogue import ACTIVATIONS as ACTIVATIONS
    from tilewise.kernels._epilogue import EMPTY_KIND as EMPTY_KIND
    from tilewise.kernels._epilogue import EPILOGUE_VARIANTS as EPILOGUE_VARIANTS
    from tilewise.kernels._epilogue import NO_EPILOGUE as NO_EPILOGUE
    from tilewise.kernels._epilogue import Epilogue as Epilogue
    from tilewise.kernels._epilogue import EpilogueKind as EpilogueKind
    from tilewise.kernels._epilogue import check_activation as check_activation
    from tilewise.kernels._epilogue import pass_ms as pass_ms
    from tilewise.kernels._epilogue import store_ms as store_ms
    from tilewise.kernels._epilogue import stream_ms as stream_ms
    from tilewise.kernels._filters import parse_filter as parse_filter
    from tilewise.kernels._formulas import Array as Array
    from tilewise.kernels._formulas import Formulas as Formulas
    from tilewise.kernels._formulas import Traits as Traits
    from tilewise.kernels._formulas import unchanged as unchanged
    from tilewise.kernels._instance_sources import Source as Source
    from tilewise.kernels._instance_sources import compare_sources as compare_sources
    from tilewise.kernels._instance_sources import filter_fields as filter_fields
    from tilewise.kernels._instance_sources import read_source as read_source
    from tilewise.kernels._layouts import channels_last_view as channels_last_view
    from tilewise.kernels._layouts import channels_second_view as channels_second_view
    from tilewise.kernels._layouts import stored_views as stored_views
    from tilewise.kernels._layouts import torch_sizes as torch_sizes
    from tilewise.kernels._layouts import torch_views as torch_views
    from tilewise.kernels._memory_formats import STORED_FORMATS as STORED_FORMATS
    from tilewise.kernels._named import FIRST_NUMBER as FIRST_NUMBER
    from tilewise.kernels._named import NamedKernel as NamedKernel
    from tilewise.kernels._operands import TENSORS as TENSORS
    from tilewise.kernels._operands import Shape as Shape
    from tilewise.kernels._operands import accepted_shapes as accepted_shapes
    from tilewise.kernels._pool import Pool as Pool
    from tilewise.kernels._pool import borrow_pool as borrow_pool
    from tilewise.kernels._pool import load_pool as load_pool
    from tilewise.kernels._pool import pool_json as pool_json
    from tilewise.kernels._pool import pool_path as pool_path
    from tilewise.kernels._registry_json import registry_json as registry_json

__all__, __getattr__ = lazy_face(
    __name__,
    {
        "_backends": (
            "BACKENDS",
            "PROGRAM_VERSIONS",
            "backend",
            "backend_of",
            "backend_of_columns",
            "backend_of_kernels",
            "backend_of_target",
            "compared_versions",
            "illegal",
            "is_half_aligned",
            "supported_mask",
            "together",
            "unsupported",
        ),
        "_contract": (
            "BACKEND_COLUMN",
            "Backend",
            "FILL",
            "FieldKind",
            "KernelBase",
            "KernelValue",
            "ParsedName",
            "RegistryEntry",
            "Rules",
            "TileKernel",
        ),
        "_defined": (
            "DefinedKernel",
            "kernel_type",
        ),
        "_epilogue": (
            "ACTIVATIONS",
            "EMPTY_KIND",
            "EPILOGUE_VARIANTS",
            "Epilogue",
            "EpilogueKind",
            "NO_EPILOGUE",
            "check_activation",
            "pass_ms",
            "store_ms",
            "stream_ms",
        ),
        "_filters": ("parse_filter",),
        "_formulas": (
            "Array",
            "Formulas",
            "Traits",
            "unchanged",
        ),
        "_instance_sources": (
            "Source",
            "compare_sources",
            "filter_fields",
            "read_source",
        ),
        "_layouts": ("channels_last_view", "channels_second_view", "stored_views", "torch_sizes", "torch_views"),
        "_memory_formats": ("STORED_FORMATS",),
        "_named": (
            "FIRST_NUMBER",
            "NamedKernel",
        ),
        "_operands": (
            "Shape",
            "TENSORS",
            "accepted_shapes",
        ),
        "_pool": (
            "Pool",
            "borrow_pool",
            "load_pool",
            "pool_json",
            "pool_path",
        ),
        "_registry_json": ("registry_json",),
    },
)

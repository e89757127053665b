"""CK Tile kernels: their names, the legality rules of each arch, file formats of instances, and shared libraries.

Takes kernel names, instance files, and libraries with CK Tile's C API; gives kernels, instances and open libraries.
Imports `errors`, `arch`, `ops` and the kernel contract, never Triton, PyTorch or pandas.
Used by `kernels` (backend registry, instance sources), `collect`, `dispatch`, `features`, `data.importers` and `cli`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tilewise._lazy import lazy_face

if TYPE_CHECKING:
    from tilewise.kernels.ck._arrays import ArrayInfo as ArrayInfo
    from tilewise.kernels.ck._arrays import array_info as array_info
    from tilewise.kernels.ck._arrays import empty_result as empty_result
    from tilewise.kernels.ck._arrays import fp8_element as fp8_element
    from tilewise.kernels.ck._arrays import operand_elements as operand_elements
    from tilewise.kernels.ck._arrays import result_elements as result_elements
    from tilewise.kernels.ck._backend import CK_TILE as CK_TILE
    from tilewise.kernels.ck._ck_kernel import STRATEGIES as STRATEGIES
    from tilewise.kernels.ck._ck_kernel import CkKernel as CkKernel
    from tilewise.kernels.ck._ck_kernel import canonical_name as canonical_name
    from tilewise.kernels.ck._ck_kernel import name_with_split as name_with_split
    from tilewise.kernels.ck._ck_kernel import parse_name as parse_name
    from tilewise.kernels.ck._ck_rules import VECTORS as VECTORS
    from tilewise.kernels.ck._conf import convert_conf as convert_conf
    from tilewise.kernels.ck._conf_fields import ConfHeader as ConfHeader
    from tilewise.kernels.ck._conf_write import builder_string as builder_string
    from tilewise.kernels.ck._dispatcher_json import dispatcher_json_text as dispatcher_json_text
    from tilewise.kernels.ck._dispatcher_json import instances_from_document as instances_from_document
    from tilewise.kernels.ck._dispatcher_json import is_dispatcher_document as is_dispatcher_document
    from tilewise.kernels.ck._instance import AnyInstance as AnyInstance
    from tilewise.kernels.ck._instance import Instance as Instance
    from tilewise.kernels.ck._instance import distinct_instances as distinct_instances
    from tilewise.kernels.ck._instance import get_instance_string as get_instance_string
    from tilewise.kernels.ck._instance import parse_instance_string as parse_instance_string
    from tilewise.kernels.ck._traits import complete_instance as complete_instance
    from tilewise.kernels.ck._traits import expand_gemm_sweep as expand_gemm_sweep
    from tilewise.kernels.ck._traits import expand_sweep as expand_sweep
    from tilewise.kernels.ck._traits import is_gemm_sweep as is_gemm_sweep
    from tilewise.kernels.ck._traits import is_sweep as is_sweep
    from tilewise.kernels.ck._traits import legal_kernels as legal_kernels
    from tilewise.kernels.ck.libraries import LIBRARY_TYPES as LIBRARY_TYPES
    from tilewise.kernels.ck.libraries import CkLibraries as CkLibraries
    from tilewise.kernels.ck.libraries import CkLibrary as CkLibrary
    from tilewise.kernels.ck.libraries import LibraryRecord as LibraryRecord
    from tilewise.kernels.ck.libraries import TensorMemory as TensorMemory
    from tilewise.kernels.ck.libraries import chosen_kernel as chosen_kernel
    from tilewise.kernels.ck.libraries import link_manifest as link_manifest
    from tilewise.kernels.ck.libraries import sha256_of as sha256_of

__all__, __getattr__ = lazy_face(
    __name__,
    {
        "_arrays": (
            "ArrayInfo",
            "array_info",
            "empty_result",
            "fp8_element",
            "operand_elements",
            "result_elements",
        ),
        "_backend": ("CK_TILE",),
        "_ck_kernel": (
            "CkKernel",
            "STRATEGIES",
            "canonical_name",
            "name_with_split",
            "parse_name",
        ),
        "_ck_rules": ("VECTORS",),
        "_conf": ("convert_conf",),
        "_conf_fields": ("ConfHeader",),
        "_conf_write": ("builder_string",),
        "_dispatcher_json": (
            "dispatcher_json_text",
            "instances_from_document",
            "is_dispatcher_document",
        ),
        "_instance": (
            "AnyInstance",
            "Instance",
            "distinct_instances",
            "get_instance_string",
            "parse_instance_string",
        ),
        "libraries": (
            "CkLibraries",
            "CkLibrary",
            "LIBRARY_TYPES",
            "LibraryRecord",
            "TensorMemory",
            "chosen_kernel",
            "link_manifest",
            "sha256_of",
        ),
        "_traits": (
            "complete_instance",
            "expand_gemm_sweep",
            "expand_sweep",
            "is_gemm_sweep",
            "is_sweep",
            "legal_kernels",
        ),
    },
)
